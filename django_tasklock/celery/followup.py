"""``on_conflict="coalesce"``: of all that arrives while a run is on, one follow-up run.

A note says who follows: the first message that was refused. The others have nothing to do,
since the follow-up starts after they arrived. Any run that starts meanwhile starts after they
arrived as well, and does it for them: it writes that it has started, and the follow-up, when
its turn comes, sees that it is no longer needed. A note that is gone counts as "needed".

A follow-up that fails before it has started gives its place up, or others would go on to be told
that it does their work.

A task that is unique in the queue gives no follow-up up: others may have been told to rely on
that very message.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from celery.exceptions import Ignore, Retry

from ..exceptions import StoreUnavailable
from ..stores.base import Note

if TYPE_CHECKING:
    from .delivery import Delivery
    from .task import LockedTask

__all__ = ["FollowUp", "follow_up_key"]

STARTED = "started"
KEPT = 3600.0
"""seconds for which it is kept that a run has started"""
FOLLOWS = 300.0
"""seconds for which it is kept who follows, from its last look: it may be lost with its worker"""


def follow_up_key(task: LockedTask, name: str) -> str:
    """Where it is noted who follows under the lock ``name``."""
    return f"next {task.name} {name}"


class FollowUp:
    """The follow-up run of the lock ``name``, as one delivery of a message sees it."""

    LOOK = 2.0
    """seconds between two looks of the follow-up at the lock, at most"""

    def __init__(self, delivery: Delivery, name: str) -> None:
        self._delivery = delivery
        self._key = follow_up_key(delivery.task, name)
        self._relied_on = delivery.task.unique_while is not None
        self._begun = False

    def wait_for(self) -> bool:
        """Called when the lock is held. True: this message is the follow-up, or still is."""
        delivery, store = self._delivery, self._delivery.task.locks.store
        over = "" if delivery.waits and not self._relied_on else STARTED
        return store.reserve(self._key, delivery.id, FOLLOWS, over=over) is None

    def begin(self) -> bool:
        """Called under the lock. False: a run that started since has done it."""
        delivery, store = self._delivery, self._delivery.task.locks.store
        # A copy may be what is left of the run that wrote the note.
        needed = not delivery.waits or delivery.copy or self._relied_on
        if not needed and store.recall(self._key) not in (None, delivery.id):
            return False
        store.remember(Note(self._key, STARTED, KEPT))
        self._begun = True
        return True

    def failed(self, error: BaseException) -> None:
        """Called when the message's run has raised: unless it comes back, another may follow."""
        delivery = self._delivery
        back = isinstance(error, Ignore | Retry) or getattr(error, "requeue", False)
        if not isinstance(error, Exception):
            back = delivery.survives
        if (
            delivery.queued
            and delivery.task.on_conflict == "coalesce"
            and not (back or self._begun)
        ):
            with suppress(StoreUnavailable):
                delivery.task.locks.store.unreserve(self._key, delivery.id)
