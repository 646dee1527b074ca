"""The values of locks' keys as `LockInfo`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..._values.lock_info import LockInfo
from ..._values.owner import Owner
from ..record import (
    Record,
    digest_of,
    fence_of,
    fields_of,
    interrupts,
    record_of,
    waiter_of,
)
from .decoding import flat_decoder
from .keyspace import Keyspace
from .record_heads import RecordHeads
from .store_client import StoreClient
from .waiter import value_of_member

__all__ = ["RecordReader"]

CACHED_RECORDS = 1500
"""records that are kept decoded: for callers who ask again and again who holds a lock, or see the
same page of the list again, and for a search, which reads what it has found once more"""


class RecordReader:
    """Reads the values of locks' keys, which anybody may have written."""

    def __init__(self, client: StoreClient, keyspace: Keyspace) -> None:
        self._client = client
        self._keyspace = keyspace
        flat = client.decode is flat_decoder()
        read = RecordHeads(self.strictly).record if flat else self.strictly
        self.record = lru_cache(CACHED_RECORDS)(read)
        """the record that a value is; None if it is none of ours, which is a lock all the same"""
        # Looked up once: otherwise each lock of a list has a bound method of its own.
        self._rest = self._fields

    def info(
        self,
        name: str,
        value: bytes,
        ttl: float | None,
        fence: bytes | None = None,
        waiters: int | None = None,
        head: bytes | None = None,
    ) -> LockInfo:
        """The `LockInfo` of a lock; the value is decoded when it is needed.

        ``value`` is that of the lock's key, ``ttl`` is in seconds (None: it never ends), ``fence``
        is as Redis returns it, ``waiters`` is the length of the wait queue, where it is known, and
        ``head`` is its first member.
        """
        name = self._keyspace.keyed(name)
        return LockInfo.deferred(
            name, ttl, self._client.alias, waiters, self._rest, name, value, fence, head
        )

    def value_of(self, info: LockInfo) -> bytes | None:
        """The value that `info` was called with; None for one that this reader has not made."""
        if getattr(info, "_rest", None) is not self._rest:
            return None
        value: bytes = info._of[1]
        return value

    def strictly(self, value: bytes) -> Record | None:
        """What `record` returns, decoded field by field."""
        try:
            decoded = self._client.decode(value)
        except Exception as error:
            if interrupts(error):
                raise
            return None
        return record_of(decoded)

    def waiter(self, member: bytes) -> Owner:
        """Who has this member of a wait queue, and since when."""
        return waiter_of(self.record(value_of_member(member)))

    def _fields(
        self, name: str, value: bytes, fence: bytes | None, head: bytes | None
    ) -> dict[str, Any]:
        fields = self._of_holder(name, value, fence)
        fields["waiting_since"] = None if head is None else self.waiter(head).waiting_since
        return fields

    def _of_holder(self, name: str, value: bytes, fence: bytes | None) -> dict[str, Any]:
        record = self.record(value)
        key = self._keyspace.key(name)
        if record is None:
            return fields_of(None, key, digest=digest_of(value))
        number = None if fence is None else fence_of(fence)
        return fields_of(record, key, number, None if number is None else number / 1_000_000)
