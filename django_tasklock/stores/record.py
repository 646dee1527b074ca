"""The record of a lease: the value of a lock's key.

Anybody may have written what is read there. A value is a record of ours if each of its fields is
one that we could have written. Every other value is somebody else's key, which is a lock too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any, NamedTuple

from .._values.arguments import LONGEST_TTL_SECONDS, is_token
from .._values.lock_info import LockInfo
from .._values.owner import ADOPTIONS, COOLING, SINCE, Owner

__all__ = [
    "Record",
    "digest_of",
    "fence_of",
    "info_of_record",
    "interrupts",
    "may_rewrite",
    "new_record",
    "record_of",
    "token_of",
    "waiter_of",
]

MAX_TIMESTAMP_SECONDS = 253402300799.0
"""seconds since the epoch: the end of the year 9999, the last that a `datetime` can have"""

_NO_OWNER = Owner()
_NUMBERS = frozenset({int, float})


def interrupts(error: BaseException) -> bool:
    """Whether an exception was raised into a call from outside, such as a soft time limit."""
    return type(error).__module__.partition(".")[0] in _INTERRUPTS


_INTERRUPTS = frozenset({"billiard", "celery", "eventlet", "gevent"})


class Record(NamedTuple):
    """The fields of a lease's record; None for those that it does not have.

    ``at``, ``ends`` and ``since`` are seconds since the epoch, by the clock of the host that wrote
    them.
    """

    token: str
    owner: Owner
    at: float | None
    ttl: float | None
    renew: bool | None
    ends: float | None
    since: float | None


def new_record(token: str, owner: Mapping[str, Any], at: float | None = None) -> dict[str, Any]:
    """A lease's record: the owner's fields, the token, and the time, in seconds since the epoch.

    ``at``: the time; None: now. It is a flat dict of JSON-able values, which every serializer of a
    cache can encode.
    """
    return {**owner, "token": token, "at": time.time() if at is None else at}


def record_of(value: Any) -> Record | None:
    """``value`` as a record of ours; None if any of our fields is not as we write it.

    Fields may be missing, and there may be other ones.
    """
    if type(value) is not dict:
        return None
    get = value.get
    token, at, ttl, ends = get("token"), get("at"), get("ttl"), get("ends")
    renew, since = get("renew"), get(SINCE)
    if (
        type(token) is str
        and is_token(token)
        and (at is None or (type(at) in _NUMBERS and 0 <= at <= MAX_TIMESTAMP_SECONDS))
        and (ttl is None or (type(ttl) in _NUMBERS and 0 < ttl <= LONGEST_TTL_SECONDS))
        and (ends is None or (type(ends) in _NUMBERS and 0 <= ends <= MAX_TIMESTAMP_SECONDS))
        and (since is None or (type(since) in _NUMBERS and 0 <= since <= MAX_TIMESTAMP_SECONDS))
        and (renew is None or renew is True or renew is False)
    ):
        owner = Owner.of_anybody(value)
        if owner is not None:
            return Record(token, owner, at, ttl, renew, ends, since)
    return None


def may_rewrite(held: Owner, owner: Mapping[str, Any], mark: str | None) -> bool:
    """Whether a lease with the owner ``held`` may be rewritten; see `Rewriting.rewrite`."""
    before, after = held.adoptions or 0, owner.get(ADOPTIONS, 0)
    if mark is None:
        return bool(before <= after)
    return held.mark == mark or bool(held.mark != COOLING and before < after)


def waiter_of(record: Record | None) -> Owner:
    """The owner in a waiter's record, with the moment at which it began to wait.

    That is ``since``, or else the time at which its record was made. A record without both, which
    was written by an earlier version, has no such moment.
    """
    if record is None:
        return _NO_OWNER
    moment = record.at if record.since is None else record.since
    if moment is None:
        return record.owner
    return replace(record.owner, waiting_since=datetime.fromtimestamp(moment, tz=timezone.utc))


def token_of(value: Any) -> str | None:
    """The token in a key's value; None if it is not a record of ours."""
    record = record_of(value)
    return None if record is None else record.token


def fence_of(text: bytes) -> int | None:
    """``text`` as a fence; None if it cannot be one."""
    try:
        fence = int(text) if len(text) < 20 else 0
    except ValueError:
        return None
    return fence if 0 < fence <= MAX_TIMESTAMP_SECONDS * 1_000_000 else None


def digest_of(value: bytes) -> str:
    """A digest that identifies a value which somebody else set."""
    return sha256(value).hexdigest()[:32]


def info_of_record(
    record: Record | None,
    name: str,
    ttl: float | None,
    store: str,
    key: str,
    *,
    fence: int | None = None,
    since: float | None = None,
    digest: str | None = None,
    waiters: int | None = None,
    waiting_since: datetime | None = None,
) -> LockInfo:
    """The `LockInfo` of the lock ``name``.

    ``record`` is what `record_of` returned. ``since`` is when the lease began by the store's own
    clock, in seconds since the epoch; without it the record's own time counts. ``digest`` is that
    of a value which is no record. The others are as in `LockInfo`.
    """
    if record is None:
        return LockInfo(
            name, ttl, None, None, _NO_OWNER, store, key, None, waiters, None, None, digest,
            waiting_since,
        )  # fmt: skip
    owner, at = record.owner, record.at if since is None else since
    if owner.waits_for is not None:
        owner = waiter_of(record)  # It holds the gate, and waits for a permit.
    began = None if at is None else datetime.fromtimestamp(at, tz=timezone.utc)
    return LockInfo(
        name, ttl, began, record.token, owner, store, key, fence, waiters, record.ttl, record.renew,
        None, waiting_since,
    )  # fmt: skip
