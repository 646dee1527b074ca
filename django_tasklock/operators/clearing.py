"""Clearing leases as they were seen, and never the next one of the same lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from .._engine.acquiring import clear
from .._values.lock_info import LockInfo
from ..stores import stores
from .logs import log_many

# Of more than these only the number is said.
MOST_NAMED = 20


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def clear_seen(info: LockInfo, *, by: str, many: bool = False) -> Outcome:
    """Clear the lock if the lease that was seen, ``info``, still has it; return what became of it.

    ``by`` says for the log and the history who clears. ``many``: that has a log line elsewhere.
    Raises `StoreUnavailable`: the lock may be cleared.
    """
    store = stores[info.store]
    # Without both, whatever holds the lock would be cleared.
    is_known = bool(info.token or info.digest)
    if is_known and clear(store, info.name, info.token, info.digest, info, by=by, many=many):
        return Outcome.CLEARED
    return Outcome.NOT_LOCKED if store.find(info.name) is None else Outcome.CHANGED_HANDS


def clear_each(found: Sequence[Any], clear: Any, by: str) -> Iterator[tuple[Any, Outcome]]:
    """Clear all that was ``found`` by `clear_seen`, or by `clear_job`, and yield each with what
    became of it. Many are one log line, also if the rest is interrupted. Raises as they do.
    """
    many, cleared = len(found) > MOST_NAMED, list[Any]()
    try:
        for each in found:
            outcome = clear(each, by=by, many=many)
            cleared += [each] if outcome is Outcome.CLEARED else []
            yield each, outcome
    finally:
        if many and cleared:
            what = "locks" if isinstance(cleared[0], LockInfo) else "reservations"
            log_many(what, cleared, by)
