"""``on_conflict="coalesce"``: all calls that arrive during a run get one follow-up run.

A note names the follow-up: the first message that was refused. The other messages are skipped,
because the follow-up starts after they arrived. Any other run that starts in the meantime also
starts after they arrived, and does their work: it writes "started" into the note, and the
follow-up sees that it is not needed any more. A follow-up that finds no note runs.

A message that may have written "started" itself does not rely on that word, and runs: a redelivery,
a retry, and one that an outage has sent back, since the reply to its own write may be lost.

A message that ends and has not done its work, because it failed, removes what it has written.
Otherwise others would be skipped, and rely on a run that never comes.

A task with ``unique_while`` never skips its follow-up: refused calls may rely on this very message.
A debounced message is not refused: it waits, and later ones replace it.
"""

from __future__ import annotations

from .._engine.renewal import renewal
from ..exceptions import StoreUnavailable
from ..stores.base import Note
from .base import TaskBase
from .delivery import Delivery

__all__ = ["FOLLOW_UP_CHECK_SECONDS", "FollowUp", "follow_up_key"]

STARTED = "started"
FOLLOW_UP_STARTED_SECONDS = 3600.0
"""how long it is kept that a run has started"""
FOLLOW_UP_NOTE_SECONDS = 300.0
"""how long the follow-up's name is kept after its last check: it may be lost with its worker"""
FOLLOW_UP_CHECK_SECONDS = 2.0
"""the longest delay between two checks of the lock by the follow-up"""


def follow_up_key(task: TaskBase, name: str) -> str:
    """Return the store's name for the note of the follow-up under the lock ``name``."""
    return f"next {task.name} {name}"


class FollowUp:
    """The follow-up run of the lock ``name``, as one delivery of a message sees it."""

    def __init__(self, delivery: Delivery, name: str) -> None:
        self._delivery = delivery
        self._name = name
        self._key = follow_up_key(delivery.task, name)
        # A debounced message has replaced others.
        self._relied_on = delivery.task.unique_while is not None or delivery.moment is not None
        self._waited = (
            delivery.refused_since is not None and not delivery.redelivered and not self._relied_on
        )
        """whether the message was the follow-up, so that any run that has started since is another
        one, and does its work"""
        self._texts = [delivery.id]
        """what the note may say because of this message"""

    def wait_for(self) -> bool:
        """Return True if this message is the follow-up. Called when the lock is held by another.

        Raises `StoreUnavailable`.
        """
        delivery, store = self._delivery, self._delivery.task.locks.store
        over = "" if self._waited else STARTED
        return store.reserve(self._key, delivery.id, FOLLOW_UP_NOTE_SECONDS, over=over) is None

    def begin(self) -> bool:
        """Write that a run starts. Returns False if another run has done this message's work.

        Called under the lock. Raises `StoreUnavailable`.
        """
        delivery, store = self._delivery, self._delivery.task.locks.store
        if self._waited and store.get_note(self._key) not in (None, delivery.id):
            return False
        self._texts.append(STARTED)  # Also if no answer comes.
        store.set_note(Note(self._key, STARTED, FOLLOW_UP_STARTED_SECONDS))
        return True

    def give_up(self) -> None:
        """Remove what a message has noted that has ended, and has not done its work.

        If the store does not answer, it is removed as soon as it does. The text "started" may be
        another run's by then: a follow-up runs once too often in that case. Raises nothing.
        """
        delivery = self._delivery
        texts, self._texts = self._texts, []
        if not delivery.queued or delivery.task.on_conflict != "coalesce":
            return
        store = delivery.task.locks.store
        for text in texts:
            try:
                store.unreserve(self._key, text)
            except StoreUnavailable:
                note = Note(self._key, text, FOLLOW_UP_NOTE_SECONDS)
                renewal.owe(self._name, note, note.ttl, store, undo=True)
                if text != STARTED:
                    self._texts.append(text)
