"""Looking at one lock in Redis."""

from __future__ import annotations

from typing import Any

from ..._values.lock_info import LockInfo
from ..._values.owner import Owner
from .notes import RedisNotes, seconds
from .script import Script

__all__ = ["RedisLookup"]

GET = Script("get")


class RedisLookup(RedisNotes):
    """The part of `RedisStore` that looks at one lock."""

    def key(self, name: str) -> str:
        """The key of a lock."""
        return self.keyspace.key(name)

    def keyed(self, name: str) -> str:
        return self.keyspace.keyed(name)

    def keyed_note(self, key: str) -> str:
        return self.keyspace.keyed_note(key)

    def get(self, name: str) -> LockInfo | None:
        reply = self._read(name)
        if reply is None:
            return None
        value, left, fence, waiters, head = reply
        return self.records.info(name, value, seconds(left), fence, waiters, head)

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        if limit <= 0:
            return []
        members = self.client.ask("ZRANGE", self.keyspace.keys(name)[3:], 0, limit - 1)
        return [self.records.waiter(member) for member in members]

    def _read(self, name: str, *, private: bool = False) -> Any:
        key, _, fences, queue = self.keyspace.keys(name)
        args = (self.keyspace.member(name),)
        return self.client.run(GET, (key, fences, queue), args, private=private)

    def _value(self, name: str, *, private: bool = False) -> bytes | None:
        reply = self._read(name, private=private)
        return None if reply is None else reply[0]

    def _value_of(self, name: str, token: str, *, private: bool = False) -> bytes | None:
        """The value of the lock's key, if it is that of the lease with this token."""
        value = self._value(name, private=private)
        record = None if value is None else self.records.record(value)
        return value if record is not None and record.token == token else None
