"""The values of locks' keys as `LockInfo`."""

from __future__ import annotations

from functools import lru_cache

from ..._values.lock_info import LockInfo
from ..._values.owner import Owner
from ..record import (
    Record,
    digest_of,
    fence_of,
    info_of_record,
    interrupts,
    record_of,
    waiter_of,
)
from .keyspace import Keyspace
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
        self.record = lru_cache(CACHED_RECORDS)(self._read)
        """the record that a value is; None if it is none of ours, which is a lock all the same"""

    def info(
        self,
        name: str,
        value: bytes,
        ttl: float | None,
        fence: bytes | None = None,
        waiters: int | None = None,
        head: bytes | None = None,
    ) -> LockInfo:
        """The `LockInfo` of a lock, which keeps the value.

        ``value`` is that of the lock's key, ``ttl`` is in seconds (None: it never ends), ``fence``
        is as Redis returns it, ``waiters`` is the length of the wait queue, where it is known, and
        ``head`` is its first member.
        """
        record, name = self.record(value), self._keyspace.keyed(name)
        number = None if record is None or fence is None else fence_of(fence)
        info = info_of_record(
            record,
            name,
            ttl,
            self._client.alias,
            self._keyspace.key(name),
            fence=number,
            since=None if number is None else number / 1_000_000,
            digest=digest_of(value) if record is None else None,
            waiters=waiters,
            waiting_since=None if head is None else self.waiter(head).waiting_since,
        )
        object.__setattr__(info, "value", value)
        return info

    def value_of(self, info: LockInfo) -> bytes | None:
        """The value that `info` was called with; None for a lock that was read elsewhere."""
        return getattr(info, "value", None) if info.store == self._client.alias else None

    def _read(self, value: bytes) -> Record | None:
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
