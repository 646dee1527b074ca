"""What is written as the value of a lock's key, and read back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ..owner import Owner

__all__ = ["fields_of", "new_record", "token_of"]

_NOTHING: dict[str, Any] = {
    "token": None, "owner": Owner(), "fence": None, "acquired_at": None, "granted": None,
    "renewing": None,
}  # fmt: skip


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


def fields_of(
    value: Any, key: str, fence: int | None = None, since: float | None = None
) -> dict[str, Any]:
    """What a lock's value says of its holder, by the names of `LockInfo`'s fields.

    ``value`` may be anything at all. ``since``, seconds since the epoch, is when the lease began
    by the store's own clock, where that is known better than from the record.
    """
    found = {**_NOTHING, "key": key}
    token = token_of(value)
    if token is not None:
        found["token"] = token
        found["owner"] = Owner.from_record(value)
        found["fence"] = fence
        found["acquired_at"] = _moment(value.get("at") if since is None else since)
        granted = value.get("ttl")
        found["granted"] = granted if isinstance(granted, int | float) else None
        found["renewing"] = value["renew"] is True if "renew" in value else None
    return found


def _moment(at: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, tz=timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None  # Not written by us.
