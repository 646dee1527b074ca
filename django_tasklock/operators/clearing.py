"""Clearing leases as they were seen, and never the next one of the same lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from .._engine.acquiring import clear
from .._engine.service import LockService
from .._values.lock_info import LockInfo


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def clear_all(
    service: LockService, seen: Sequence[LockInfo], *, by: str
) -> Iterator[tuple[LockInfo, Outcome]]:
    """Clear each lock if the lease that was ``seen`` still has it; yield what became of each.

    ``by`` says for the log and the history who clears. Raises `StoreUnavailable`: what was yielded
    before is known, the next one may be cleared.
    """
    store = service.store
    for info in seen:
        # Without both, whatever holds the lock would be cleared.
        is_known = bool(info.token or info.digest)
        if is_known and clear(store, info.name, info.token, info.digest, info, by=by):
            yield info, Outcome.CLEARED
        else:
            gone = store.find(info.name) is None
            yield info, Outcome.NOT_LOCKED if gone else Outcome.CHANGED_HANDS
