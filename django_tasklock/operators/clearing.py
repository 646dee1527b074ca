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
            if is_known and clear(store, *lease, info, by=by, noted=each_noted):
                removed += 1
                yield info, Outcome.CLEARED
            else:
                gone = store.find(info.name) is None
                yield info, Outcome.NOT_LOCKED if gone else Outcome.CHANGED_HANDS
    finally:
        if removed and not each_noted:
            count = f"{removed:,} locks"
            note_event(store, "cleared", "*", Owner(), by=by, reason=count)
            write_events(store)
