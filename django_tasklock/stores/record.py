"""What is written as the value of a lock's key, and read back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ..lease import LockInfo
from ..owner import Owner

__all__ = ["info_from_value", "new_record", "token_of"]

_NOBODY = Owner()


def new_record(token: str, owner: Mapping[str, Any]) -> dict[str, Any]:
    """A lease's record: the owner's fields, the token, and the wall clock, in seconds.

    Plain JSON-able values in one flat dict: every serializer of a cache can carry it.
    """
    return {**owner, "token": token, "at": time.time()}


def token_of(value: Any) -> str | None:
    """The token in a key's value; None if it is not a record of ours."""
    if isinstance(value, dict):
        token = value.get("token")
        if isinstance(token, str):
            return token
    return None


def info_from_value(
    value: Any,
    *,
    name: str,
    ttl: float | None,
    store: str,
    key: str,
    fence: int | None = None,
    since: float | None = None,
    waiters: int | None = None,
) -> LockInfo:
    """The `LockInfo` of a key that holds ``value``, which may be anything at all.

    ``since``, seconds since the epoch, is when the lease began by the store's own clock,
    where that is known better than from the record.
    """
    token = token_of(value)
    if token is None:
        return LockInfo(name, ttl, None, None, _NOBODY, store, key, None, waiters)
    granted = value.get("ttl")
    acquired_at = _moment(value.get("at") if since is None else since)
    owner = Owner.from_record(value)
    return LockInfo(
        name, ttl, acquired_at, token, owner, store, key, fence, waiters,
        granted if isinstance(granted, int | float) else None,
        value["renew"] is True if "renew" in value else None,
    )  # fmt: skip


def _moment(at: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, tz=timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None  # Not written by us.
