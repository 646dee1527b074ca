"""What is in the node of a lease, or of a waiter."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ..._values.arguments import LONGEST_TTL_SECONDS
from ..._values.lock_info import LockInfo
from ..._values.owner import Owner
from ..record import Record, digest_of, info_of_record, new_record, record_of, waiter_of
from .paths import token_of
from .requests import Node

__all__ = ["FENCE", "LASTS", "Lease", "encoded", "lease_record", "waiter_record"]

LASTS = "lasts"
"""the key of the seconds that the lease lasts from the node's last change, or will last"""
FENCE = "fence"
"""the key of the fence of a lease whose node has taken the place of another one"""
WAITING = "waiting"
"""the key that a waiter's record has, until the waiter takes the lock"""


def lease_record(token: str, owner: Mapping[str, Any], ttl: float) -> dict[str, Any]:
    """The record of a lease that begins now."""
    return {**new_record(token, owner), LASTS: ttl}


def waiter_record(token: str, owner: Mapping[str, Any], ttl: float, since: float) -> dict[str, Any]:
    """The record of one who waits for a lease since this time, in seconds since the epoch."""
    return {**new_record(token, owner, since), LASTS: ttl, WAITING: True}


def lasting(record: Mapping[str, Any], ttl: float) -> dict[str, Any]:
    """The record of a lease that is extended."""
    return {**record, LASTS: ttl}


def taken(record: Mapping[str, Any], ttl: float) -> dict[str, Any]:
    """The record of a lease that begins now, of one who has waited for it."""
    begun = {key: value for key, value in record.items() if key != WAITING}
    return {**begun, "at": time.time(), LASTS: ttl}


def encoded(record: Mapping[str, Any]) -> bytes:
    """The record as a node's data."""
    return json.dumps(record, separators=(",", ":")).encode("ascii")


class Lease:
    """What a child of a lock says: a lease, a waiter, or something that somebody else put there.

    Attributes:
        record: None if it is not ours.
        fields: the record as it was decoded; empty if it is not ours.
        lasts: seconds from the node's last change; None if it is not ours.
        waiting: whether it is a waiter that has not taken the lock.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.fields = _decoded(node)
        self.record: Record | None = record_of(self.fields) if self.fields else None
        self.lasts: float | None = self.fields.get(LASTS)
        self.waiting = self.fields.get(WAITING) is True

    @property
    def token(self) -> str | None:
        """The token; None if it is not ours."""
        return None if self.record is None else self.record.token

    @property
    def fence(self) -> int:
        """The transaction that created the lease's first node: greater than that of each lease
        before."""
        return int(self.fields.get(FENCE, self.node.stat.czxid))

    @property
    def digest(self) -> str:
        """What identifies something that is not ours."""
        return digest_of(repr((self.node.path, self.node.data, self.node.stat.mzxid)).encode())

    def as_waiter(self) -> Owner:
        """Who waits, and since when."""
        return waiter_of(self.record)

    def info(
        self,
        name: str,
        store: str,
        key: str,
        ttl: float | None,
        waiters: int | None = None,
        head: Lease | None = None,
    ) -> LockInfo:
        """What holds the lock, for those who do not; ``head`` is the next waiter."""
        return info_of_record(
            self.record,
            name,
            ttl,
            store,
            key,
            fence=self.fence,
            digest=self.digest if self.record is None else None,
            waiters=waiters,
            waiting_since=None if head is None else head.as_waiter().waiting_since,
        )


def _decoded(node: Node) -> dict[str, Any]:
    """The record of a node of ours; an empty one if somebody else may have made the node."""
    try:
        fields = json.loads(node.data)
    except (ValueError, RecursionError):
        return {}
    if type(fields) is not dict:
        return {}
    lasts: Any = fields.get(LASTS)
    fence: Any = fields.get(FENCE, node.stat.czxid)
    record = record_of(fields)
    if (
        record is None
        or record.token != token_of(node.child)
        or type(lasts) not in (int, float)
        or not 0 < lasts <= LONGEST_TTL_SECONDS
        or type(fence) is not int
        or not 0 < fence <= node.stat.czxid
    ):
        return {}
    return fields
