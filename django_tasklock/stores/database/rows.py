"""What a row of the table says: a lease, or a lock that no lease of ours explains."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..._values.lock_info import LockInfo
from ..._values.owner import SINCE, Owner
from ..record import Record, digest_of, fence_of, info_of_record, record_of, waiter_of

__all__ = [
    "Queued",
    "Row",
    "holder_of",
    "info_of",
    "microseconds",
    "owner_of",
    "owner_text",
    "waiter_text",
]

MICROSECONDS_PER_SECOND = 1_000_000

_encoded = json.JSONEncoder(separators=(",", ":")).encode


class Row(NamedTuple):
    """One row. Moments are in microseconds since the epoch; ``now`` is when it was read."""

    key: str
    token: str
    expires: int
    acquired: int
    fence: int
    owner: str
    now: int
    granted: bool = False
    """whether this very statement granted the lock; only in the answer to acquire"""


class Queued(NamedTuple):
    """One waiter in a wait queue."""

    position: int
    token: str
    alive: int
    """until when it counts as alive"""
    owner: str
    now: int

    def as_row(self, key: str) -> Row:
        """The waiter as what holds the lock: nobody else gets it while it is alive."""
        return Row(key, self.token, self.alive, self.now, 0, self.owner, self.now)

    def as_owner(self) -> Owner:
        """The waiter, and since when it waits."""
        return waiter_of(_record_of(self.as_row("")))


def microseconds(seconds: float) -> int:
    """Seconds as the table has them."""
    return round(seconds * MICROSECONDS_PER_SECOND)


def owner_text(owner: Mapping[str, Any]) -> str:
    """The owner's fields as they are stored: ASCII, which every character set has."""
    return _encoded(owner)


def waiter_text(owner: Mapping[str, Any]) -> str:
    """The fields of an owner that begins to wait now, unless they say since when it waits."""
    return owner_text({SINCE: time.time(), **owner})


def owner_of(row: Row) -> Owner | None:
    """The owner of a lease; None for a lock that no lease of ours explains."""
    record = _record_of(row)
    return None if record is None else record.owner


def holder_of(token: str, owner: str) -> Owner:
    """The owner of a lock whose row has these: as `info_of` has it."""
    return owner_of(Row("", token, 0, 0, 0, owner, 0)) or Owner()


def info_of(row: Row, name: str, store: str) -> LockInfo:
    """What the row says of the lock ``name`` in the store with the alias ``store``."""
    record = _record_of(row)
    return info_of_record(
        record,
        name,
        max(0.0, (row.expires - row.now) / MICROSECONDS_PER_SECOND),
        store,
        row.key,
        fence=fence_of(b"%d" % row.fence),
        since=row.acquired / MICROSECONDS_PER_SECOND,
        digest=None if record is not None else digest_of(repr(row[:6]).encode()),
    )


def _record_of(row: Row) -> Record | None:
    try:
        owner = json.loads(row.owner)
    except ValueError:
        return None
    return record_of({**owner, "token": row.token}) if type(owner) is dict else None
