"""Clearing leases as they were seen, and never the next one of the same lock."""

from __future__ import annotations

from enum import Enum

from .._engine.acquiring import clear
from .._values.lock_info import LockInfo
from ..stores import stores


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def clear_seen(info: LockInfo, *, by: str) -> Outcome:
    """Clear the lock if the lease that was seen, ``info``, still has it; return what became of it.

    ``by`` says for the log and the history who clears. Raises `StoreUnavailable`: the lock may be
    cleared.
    """
    store = stores[info.store]
    # Without both, whatever holds the lock would be cleared.
    is_known = bool(info.token or info.digest)
    if is_known and clear(store, info.name, info.token, info.digest, info, by=by):
        return Outcome.CLEARED
    return Outcome.NOT_LOCKED if store.find(info.name) is None else Outcome.CHANGED_HANDS
