"""What is written as the value of a lock's key, and read back.

What is read may have been written by anybody. A value is a record of ours if every field of it
is what we would have written; whatever else is there is somebody else's key, and a lock too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any, NamedTuple

from ..arguments import LONGEST_TTL, is_token
from ..owner import Owner

__all__ = [
    "Record",
    "digest_of",
    "fence_of",
    "fields_of",
    "interrupts",
    "new_record",
    "record_of",
    "token_of",
]

LAST_MOMENT = 253402300799.0
"""seconds since the epoch; the end of the year 9999, after which a datetime knows no other"""

_NO_OWNER = Owner()
_NUMBERS = frozenset({int, float})


def interrupts(error: BaseException) -> bool:
    """Whether an error is none of the call's that it came out of, such as a soft time limit."""
    return type(error).__module__.partition(".")[0] in _INTERRUPTS


_INTERRUPTS = frozenset({"billiard", "celery", "eventlet", "gevent"})


class Record(NamedTuple):
    """What a lease's record says; what it does not say is None.

    ``at`` and ``ends`` are by the wall clock of the host that wrote it, in seconds.
    """

    token: str
    owner: Owner
    at: float | None
    ttl: float | None
    renew: bool | None
    ends: float | None


def new_record(token: str, owner: Mapping[str, Any]) -> dict[str, Any]:
    """A lease's record: the owner's fields, the token, and the wall clock, in seconds.

    Plain JSON-able values in one flat dict: every serializer of a cache can carry it.
    """
    return {**owner, "token": token, "at": time.time()}


def record_of(value: Any) -> Record | None:
    """``value`` as a record of ours; None if a single field of it is not as we write it.

    A field may be missing, and there may be others.
    """
    if type(value) is not dict:
        return None
    get = value.get
    token, at, ttl, ends = get("token"), get("at"), get("ttl"), get("ends")
    renew = get("renew")
    if (
        type(token) is str
        and is_token(token)
        and (at is None or (type(at) in _NUMBERS and 0 <= at <= LAST_MOMENT))
        and (ttl is None or (type(ttl) in _NUMBERS and 0 < ttl <= LONGEST_TTL))
        and (ends is None or (type(ends) in _NUMBERS and 0 <= ends <= LAST_MOMENT))
        and (renew is None or renew is True or renew is False)
    ):
        owner = Owner.of_anybody(value)
        if owner is not None:
            return Record(token, owner, at, ttl, renew, ends)
    return None


def token_of(value: Any) -> str | None:
    """The token in a key's value; None if it is not a record of ours."""
    record = record_of(value)
    return None if record is None else record.token


def fence_of(text: bytes) -> int | None:
    """A fence; None for what somebody else wrote in its place."""
    try:
        fence = int(text) if len(text) < 20 else 0
    except ValueError:
        return None
    return fence if 0 < fence <= LAST_MOMENT * 1_000_000 else None


def digest_of(value: bytes) -> str:
    """What tells a value that somebody else set from another one."""
    return sha256(value).hexdigest()[:32]


def fields_of(
    record: Record | None,
    key: str,
    fence: int | None = None,
    since: float | None = None,
    digest: str | None = None,
) -> dict[str, Any]:
    """What a lock's record (`record_of`) says of its holder, by the names of `LockInfo`'s fields.

    ``since``, seconds since the epoch, is when the lease began by the store's own clock, where
    that is known better than from the record. ``digest`` is that of a value which is no record.
    """
    if record is None:
        return {
            "token": None, "owner": _NO_OWNER, "fence": None, "acquired_at": None, "granted": None,
            "renewing": None, "key": key, "digest": digest,
        }  # fmt: skip
    token, owner, at, ttl, renew, _ = record
    if since is not None:
        at = since
    return {
        "token": token,
        "owner": owner,
        "fence": fence,
        "acquired_at": None if at is None else datetime.fromtimestamp(at, tz=timezone.utc),
        "granted": ttl,
        "renewing": renew,
        "key": key,
        "digest": None,
    }
