"""Leases in Redis: each verb is one script and one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..._compat.redis_caches import only_prepends
from ..._values.lock_info import LockInfo
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from ..base import Extension, Finding
from .any_of import RedisAnyOf
from .client import Client, milliseconds
from .keyspace import Keyspace
from .listing import Listing
from .script import Script
from .server import findings, next_fence
from .subscriber import Subscriber

__all__ = ["EXTEND", "LEASES_PER_SCRIPT", "WHICH_ARE_HELD", "RedisStore"]

EXTEND = Script("extend")
WHICH_ARE_HELD = Script("which_are_held")

LEASES_PER_SCRIPT = 500
"""a script for so many keeps the server busy for about half a millisecond"""


class RedisStore(RedisAnyOf):
    """Leases in Redis, through django-redis's raw client or that of Django's own Redis backend.

    The value of a lock's key is the record of its lease, in the cache's own serializer. So the
    cache, ``redis-cli`` and code that calls ``cache.add`` on the same key see the lock, and each
    side excludes the other. `Keyspace` says which other keys there are.
    """

    uses_cache = True

    def __init__(self, settings: StoreSettings) -> None:
        client = Client(settings)
        prepends = only_prepends(client.cache)
        keyspace = Keyspace(client.make_key, settings.key_prefix, settings.alias, prepends=prepends)
        super().__init__(settings, client, keyspace)
        self.subscriber = Subscriber(client, self.keyspace.channels)
        self._listing = Listing(client, self.keyspace, self.records)
        self._server = client

    def close_idle(self) -> None:
        self.client.close_idle()
        self.subscriber.close_idle()

    def subscriber_of(self, name: str) -> Subscriber:
        return self.subscriber

    def _extend(self, batch: Sequence[Extension], *, private: bool) -> list[bool]:
        done: list[bool] = []
        for start in range(0, len(batch), LEASES_PER_SCRIPT):
            part = batch[start : start + LEASES_PER_SCRIPT]
            keys: list[bytes] = [self.keyspace.index]
            args: list[Any] = []
            for name, token, ttl, proof in part:
                value = proof or self._value_of(name, token) or b""
                keys.append(self.keyspace.key(name).encode())
                args += value, milliseconds(ttl), self.keyspace.member(name)
            # A renewal that a failover forgets is made good by the next one, long before its end.
            wait = None if private else self.replicas.wait(milliseconds(part[0].ttl))
            done += map(bool, self.client.run(EXTEND, keys, args, private=private, wait=wait))
            if wait is not None and not wait.enough and any(done):
                raise StoreUnavailable(self.alias, f"{part[0].name} is not extended: {wait}")
        return done

    def held(self, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(names), LEASES_PER_SCRIPT):
            part = names[start : start + LEASES_PER_SCRIPT]
            keys = [self.keyspace.key(name).encode() for name in part]
            answers = self.client.run(WHICH_ARE_HELD, keys)
            found.update(name for name, held in zip(part, answers, strict=True) if held)
        return found

    def next_fence(self) -> int:
        return next_fence(self._server, self.keyspace.fences)

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        return self._listing.list(prefix, limit, offset)

    def count(self, prefix: str = "") -> int:
        return self._listing.count(prefix)

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        return self._listing.scan(prefix)

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        return self._listing.endless(prefix)

    def check(self) -> Iterable[Finding]:
        keyspace = self.keyspace
        subscriber = Subscriber(self._server, keyspace.channels)
        return findings(self._server, self.replicas.needed, keyspace, subscriber)
