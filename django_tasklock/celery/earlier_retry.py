"""The retry that an earlier run of a message has sent, though its message was delivered again.

That run was killed when it had sent it, or the broker had it and did not say so. One of the two
messages is to do the work: the redelivery is dropped when the retry runs (`Delivery.judge`), and
the retry is dropped when the redelivery has done the work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from .._engine.renewal import renewal
from ..exceptions import StoreUnavailable
from ..stores.base import Note
from .delivery import Delivery
from .requeue import deliver_again

__all__ = ["EarlierRetry"]


class EarlierRetry:
    """As a later run of the same message sees it, under the lock ``name``."""

    def __init__(self, delivery: Delivery, name: str) -> None:
        self._delivery = delivery
        self._name = name
        self._dropping: Note | None = None

    def drop(self, write: Callable[[Note], None]) -> None:
        """Have it dropped. Called before the release, after which it may run. Raises nothing.

        ``write``: writes a note; if the store does not answer, it does so later, and raises
        `StoreUnavailable`. It is not kept: it belongs to the run, whose body refers to this object.
        """
        self._dropping = note = self._delivery.note_for_retry()
        if note is not None:
            with suppress(StoreUnavailable):
                write(note)

    def undo_drop(self) -> None:
        """Let it run all the same: the lease was lost, and the work does not count."""
        note, self._dropping = self._dropping, None
        if note is not None:
            self._owe_undo(note)

    def _owe_undo(self, note: Note) -> None:
        renewal.owe(self._name, note, note.ttl, self._delivery.task.locks.store, undo=True)

    def need(self) -> None:
        """Called before this run sends a retry: a run that was killed may have had it dropped.

        Raises `Reject`, for the broker to deliver the message again, if the store does not answer,
        except with ``on_outage="run"``: it is done as soon as the store answers then.
        """
        task, note = self._delivery.task, self._delivery.note_for_retry()
        if note is None:
            return
        try:
            task.locks.store.unreserve(note.key, note.text)
        except StoreUnavailable as error:
            if task.on_outage != "run":
                deliver_again(task, error)
            self._owe_undo(note)
