"""Hundreds of locks in one round trip: what holds them, and clearing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..._values.lock_info import LockInfo
from .keyspace import QUEUE
from .lookup import RedisLookup
from .notes import seconds
from .script import Script
from .server_client import Call

__all__ = ["CLEAR_MANY", "LOCKS_PER_SCRIPT", "RedisManyLocks"]

GET_MANY = Script("get_many")
CLEAR_MANY = Script("clear_many")

LOCKS_PER_SCRIPT = 500
"""a script that clears so many, with a waiter for each, keeps the server busy for some ten
milliseconds"""


class RedisManyLocks(RedisLookup):
    """The part of a store on Redis that looks at many locks, and clears them."""

    def _groups(self, names: Sequence[str]) -> Iterator[Sequence[int]]:
        """The indexes of the names that one script can be about, script by script."""
        for start in range(0, len(names), LOCKS_PER_SCRIPT):
            yield range(start, min(start + LOCKS_PER_SCRIPT, len(names)))

    def _look(self, calls: Sequence[Call]) -> list[Any]:
        """The replies of scripts that only read."""
        return [self.client.run(*call) for call in calls]

    def get_many(self, names: Sequence[str]) -> list[LockInfo | None]:
        found: list[LockInfo | None] = [None] * len(names)
        groups = list(self._groups(names))
        calls = [self._get_call([names[at] for at in group]) for group in groups]
        for group, flat in zip(groups, self._look(calls), strict=True):
            rows = zip(group, *(flat[field::5] for field in range(5)), strict=True)
            for at, value, left, *rest in rows:
                if value is not None:
                    found[at] = self.records.info(names[at], value, seconds(left), *rest)
        return found

    def _get_call(self, names: Sequence[str]) -> Call:
        keys = [self.keyspace.keys(names[0])[2]]
        for name in names:
            key = self.keyspace.key(name).encode()
            keys += key, key + QUEUE
        return Call(GET_MANY, keys, [*map(self.keyspace.member, names)])

    def clear_many(self, holders: Sequence[LockInfo]) -> list[bool]:
        values = [self.records.value_of(holder) for holder in holders]
        if None in values:  # Some were not read from this store: they have no value to compare.
            return super().clear_many(holders)
        done = [False] * len(holders)
        for group in self._groups([holder.name for holder in holders]):
            _, index, fences, _ = self.keyspace.keys(holders[group[0]].name)
            keys: list[bytes] = [index, fences]
            args: list[Any] = []
            for at in group:
                name = holders[at].name
                key, _, _, queue = self.keyspace.keys(name)
                keys += key, queue, self.keyspace.cleared_key(name)
                args += self.keyspace.member(name), values[at]
            # Not sent again after a lost reply: it would answer 0 for what it has cleared.
            for at, cleared in zip(
                group, self.client.run(CLEAR_MANY, keys, args, again=False), strict=True
            ):
                done[at] = bool(cleared)
        return done
