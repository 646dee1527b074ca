"""Who or what holds a lock, in words."""

from __future__ import annotations

from .._values.describe import duration, printable
from .._values.lock_info import LockInfo

__all__ = ["held_by"]


def held_by(info: LockInfo) -> str:
    """Return a clause that follows the lock's name, such as "is held by pid 7 on worker-1"."""
    owner = "other code" if info.token is None else printable(info.owner)
    if info.cooling:
        if info.ttl is None:  # Other code has taken the key's TTL away.
            return f"is cooling down, and never expires: it was held by {owner}"
        return f"is cooling down for {duration(info.ttl)} more: it was held by {owner}"
    return f"is held by {owner}"
