"""Clearing leases as they were seen, and never the next one of the same lock."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum

from .._engine.acquiring import clear
from .._engine.history import note_event, write_events
from .._engine.service import LockService
from .._values.lock_info import LockInfo
from .._values.owner import Owner

# If more are cleared, that is one event, of the name "*": the history keeps some thousands, of all
# locks together.
MOST_EVENTS = 100


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def clear_all(
    service: LockService, seen: Sequence[LockInfo], *, by: str
) -> Generator[tuple[LockInfo, Outcome], None, None]:
    """Clear each lock if the lease that was ``seen`` still has it; yield what became of each.

    ``by`` says for the log and the history who clears. Raises `StoreUnavailable`: what was yielded
    before is known, the next one may be cleared.
    """
    store, removed, each_noted = service.store, 0, len(seen) <= MOST_EVENTS
    try:
        for info in seen:
            # Without both, whatever holds the lock would be cleared.
            is_known = bool(info.token or info.digest)
            lease = info.name, info.token, info.digest
            done = is_known and clear(store, *lease, info, by=by, noted=each_noted)
            outcome = Outcome.CLEARED if done else _cleared_late(service, info, by)
            removed += outcome is Outcome.CLEARED
            yield info, outcome
    finally:
        if removed and not each_noted:
            count = f"{removed:,} locks"
            note_event(store, "cleared", "*", Owner(), by=by, reason=count)
            write_events(store)


def _cleared_late(service: LockService, info: LockInfo, by: str) -> Outcome:
    """What became of a lease that was not as it was seen."""
    now = service.store.find(info.name)
    if now is None:
        return Outcome.NOT_LOCKED
    # The same lease with another record: it was detached or adopted meanwhile.
    if info.is_same_lease(now) and service.clear(info.name, info.token, by=by):
        return Outcome.CLEARED
    return Outcome.CHANGED_HANDS
