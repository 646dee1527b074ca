"""Clearing the very lease that somebody saw, and never its successor."""

from __future__ import annotations

from enum import Enum

from .lease import LockInfo
from .service import LockService

__all__ = ["Outcome", "clear_seen"]


class Outcome(Enum):
    """What became of a lease that was to be cleared. The value is the command's word for it."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def clear_seen(
    service: LockService, name: str, token: str | None, digest: str | None = None, *, by: str
) -> tuple[Outcome, LockInfo | None]:
    """Clear the lock ``name`` if the lease seen with ``token`` still holds it.

    ``token`` is None for a key that somebody else set: it is cleared if it still has the value
    that was seen, whose ``digest`` the `LockInfo` had (None: any value). ``by`` says for the log
    who clears. Returns what became of it, and who held it when it was asked for. Raises
    `StoreUnavailable`.
    """
    holder = service.get(name)
    if holder is None:
        return Outcome.NOT_LOCKED, None
    if holder.token != token or (token is None and digest not in (None, holder.digest)):
        return Outcome.CHANGED_HANDS, holder
    if service.clear(name, token, by=by, digest=holder.digest):
        return Outcome.CLEARED, holder
    # It went between the question and the clear: by itself, or to somebody else.
    gone = service.get(name) is None
    return (Outcome.NOT_LOCKED if gone else Outcome.CHANGED_HANDS), holder
