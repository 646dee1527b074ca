"""Clearing a lease as it was seen, and never the next one of the same lock."""

from __future__ import annotations

import hashlib
from enum import Enum

from .._engine.service import LockService
from .._values.lock_info import LockInfo

__all__ = ["Outcome", "clear_seen", "is_seen", "token_digest"]


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def token_digest(token: str) -> str:
    """Return what tells a lease from all others, but proves nothing and clears nothing: for a page
    that a user sees who may only look."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def is_seen(info: LockInfo, token: str | None, digest: str | None) -> bool:
    """Whether the holder ``info`` is the one that was seen.

    It was seen as a lease with this ``token``, as a lease whose token has this ``digest``, or as a
    key that other code set, whose value has this ``digest`` (None: any value).
    """
    if token is not None or info.token is None:
        return token == info.token and (token is not None or digest in (None, info.digest))
    return digest == token_digest(info.token)


def clear_seen(
    service: LockService, name: str, token: str | None, digest: str | None = None, *, by: str
) -> tuple[Outcome, LockInfo | None]:
    """Clear the lock ``name`` if it is still held as it was seen: see `is_seen`.

    ``by`` says for the log who clears. Returns the outcome, and the holder before it (None: not
    locked). Raises `StoreUnavailable`.
    """
    holder = service.get(name)
    if holder is None:
        return Outcome.NOT_LOCKED, None
    if not is_seen(holder, token, digest):
        return Outcome.CHANGED_HANDS, holder
    if service.clear(name, holder.token, by=by, digest=holder.digest):
        return Outcome.CLEARED, holder
    # The lease ended between the two calls; the lock may have another holder now.
    gone = service.get(name) is None
    return (Outcome.NOT_LOCKED if gone else Outcome.CHANGED_HANDS), holder
