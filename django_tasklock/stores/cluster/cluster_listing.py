"""Listing on a cluster: the indexes of all buckets, merged."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..._values import clock
from ..._values.lock_info import LockInfo
from ..redis.listing import (
    COUNT_LOCKS,
    NAMES_PER_SCRIPT,
    RECORDS_PER_SCRIPT,
    VALUES_OF_KEYS,
    LockInfos,
    decoded,
    escaped,
    infos,
    lock_name,
    page_call,
    records_call,
)
from ..redis.record_reader import RecordReader
from ..redis.server_client import Call
from .buckets import BUCKETS, ClusterKeyspace, bucket_of_key
from .client import ClusterClient

__all__ = ["ClusterListing"]

SHORTEST_PAGE = 16
"""how many names are read from each bucket at least, as the buckets are not equally full"""
PAGE_SHARE = 1.5
"""how many of the names that are wanted are read from each bucket, if all have as many: 1 would
mostly be too few for some of them, and cost another round trip"""
RECORDS_PER_ROUND = 16 * RECORDS_PER_SCRIPT


class Entry(NamedTuple):
    """One name of a bucket's index."""

    end: float
    """on `clock.now`, in milliseconds: the clocks of two nodes may differ"""
    bucket: int
    name: bytes
    end_text: bytes
    """as the index has it, by the node's clock"""
    now: int
    """the node's clock when the index was read, in milliseconds"""


class Pages:
    """The index of one bucket, which is read page by page."""

    def __init__(self, bucket: int) -> None:
        self.bucket = bucket
        self.at = 0
        """the rank from which the next page begins"""
        self.whole = False
        """whether all of it was read"""
        self.entries: list[Entry] = []
        """those that were read and not taken yet, the last one first"""

    def add(self, size: int, reply: Sequence[Any]) -> None:
        """Take a page, for which ``size`` names were to be read."""
        now, read, flat = reply
        ours = clock.now() * 1000 - now
        page = [
            Entry(float(end) + ours, self.bucket, name, end, now)
            for name, end in zip(flat[::2], flat[1::2], strict=True)
        ]
        self.at += read
        self.whole = read < size
        self.entries = [*reversed(page), *self.entries]


class ClusterListing:
    """`list`, `count` and `scan` of a `RedisClusterStore`.

    A list takes two round trips to each node: one for the names, of all buckets there, and one for
    the records of those that are wanted. More for very long lists.
    """

    def __init__(
        self, client: ClusterClient, keyspace: ClusterKeyspace, records: RecordReader
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._records = records

    def list(self, prefix: str, limit: int | None, offset: int) -> LockInfos:
        size = NAMES_PER_SCRIPT
        if limit is not None:
            each = int((offset + limit) / BUCKETS * PAGE_SHARE)
            size = min(size, max(SHORTEST_PAGE, each))
        pages = [Pages(bucket) for bucket in range(BUCKETS)]
        entries = self._in_order(pages, prefix, size)
        for _ in islice(entries, offset):
            pass
        found: list[LockInfo] = []
        while limit is None or len(found) < limit:
            missing = RECORDS_PER_ROUND if limit is None else limit - len(found)
            part = list(islice(entries, min(missing, RECORDS_PER_ROUND)))
            if not part:
                break
            found += self._read_records(pages, part)
        return found

    def count(self, prefix: str) -> int:
        if not prefix:
            calls = [Call(COUNT_LOCKS, (bucket.index,)) for bucket in self._keyspace.buckets]
            return sum(map(int, self._client.run_many(calls)))
        pages = [Pages(bucket) for bucket in range(BUCKETS)]
        total = 0
        while some := [each for each in pages if not each.whole]:
            self._read(some, prefix, NAMES_PER_SCRIPT)
            for each in some:
                total += len(each.entries)
                each.entries.clear()
        return total

    def scan(self, prefix: str) -> Iterator[LockInfo]:
        start = self._keyspace.lock_prefix
        pattern = f"{escaped(start)}{{*}}:{escaped(prefix)}*"
        key_of_lock = re.compile(re.escape(start.encode()) + rb"\{\d+\}:(.+)", re.DOTALL).fullmatch
        seen: set[bytes] = set()
        for node in self._client.topology.masters():
            cursor = 0
            while True:
                cursor, keys = node.client.ask(
                    "SCAN", (), cursor, "MATCH", pattern, "COUNT", RECORDS_PER_SCRIPT
                )
                found: dict[bytes, str] = {}
                for key in keys:
                    name = lock_name(match[1]) if (match := key_of_lock(key)) else None
                    if name and key not in seen and self._keyspace.key(name).encode() == key:
                        found[key] = name
                seen.update(found)
                yield from self._read_values(found)
                if int(cursor) == 0:
                    break

    def walk(self, prefix: str) -> Iterator[LockInfo]:
        pages = [Pages(bucket) for bucket in range(BUCKETS)]
        # All names first: mostly one page of each bucket, so that none is missed while they change.
        entries = self._in_order(pages, prefix, NAMES_PER_SCRIPT)
        seen: set[str] = set()
        while part := list(islice(entries, RECORDS_PER_SCRIPT)):
            # A lease that was extended comes again.
            found = [info for info in self._read_records(pages, part) if info.name not in seen]
            seen.update(info.name for info in found)
            yield from found

    def _in_order(self, pages: Sequence[Pages], prefix: str, size: int) -> Iterator[Entry]:
        """All names, the soonest to end first."""
        self._read(pages, prefix, size)
        heap = [each.entries.pop() for each in pages if each.entries]
        heapq.heapify(heap)
        while heap:
            entry = heapq.heappop(heap)
            own = pages[entry.bucket]
            if not own.entries and not own.whole:
                # Not only this one: the others are mostly as far.
                some = [each for each in pages if not each.whole and len(each.entries) < size / 2]
                self._read(some, prefix, size)
            if own.entries:
                heapq.heappush(heap, own.entries.pop())
            yield entry

    def _read(self, pages: Iterable[Pages], prefix: str, size: int) -> None:
        """Read one page of each, or more where the first has no name with the prefix."""
        while pages := [each for each in pages if not each.whole]:
            buckets = self._keyspace.buckets
            calls = [page_call(buckets[each.bucket], each.at, size, prefix) for each in pages]
            for each, reply in zip(pages, self._client.run_many(calls), strict=True):
                each.add(size, reply)
            pages = [each for each in pages if not each.entries]

    def _read_records(self, pages: Sequence[Pages], part: Sequence[Entry]) -> LockInfos:
        """The locks of some names, in their order, without those that are gone."""
        places: dict[tuple[int, int], list[int]] = {}
        for place, entry in enumerate(part):
            places.setdefault((entry.bucket, entry.now), []).append(place)
        found: list[LockInfo | None] = [None] * len(part)
        calls: list[Call] = []
        asked: list[tuple[int, int, list[int], Sequence[str]]] = []
        for (bucket, now), own in places.items():
            keyspace = self._keyspace.buckets[bucket]
            names = [part[place].name for place in own]
            texts, _, strange = decoded(keyspace, names, names)
            if strange:
                self._client.ask("ZREM", [keyspace.index], *strange)
                own = [place for place in own if part[place].name not in strange]
            pages[bucket].at -= len(strange)
            calls.append(records_call(keyspace, texts))
            asked.append((bucket, now, own, texts))
        for (bucket, now, own, texts), reply in zip(
            asked, self._client.run_many(calls), strict=True
        ):
            live = [place for place, value in zip(own, reply[0], strict=True) if value is not None]
            # The script has removed those from the index whose key is gone.
            pages[bucket].at -= len(own) - len(live)
            ends = [part[place].end_text for place in own]
            for place, info in zip(
                live, infos(self._records, now, texts, ends, *reply), strict=True
            ):
                found[place] = info
        return [info for info in found if info is not None]

    def _read_values(self, found: dict[bytes, str]) -> Iterator[LockInfo]:
        groups: dict[int, list[bytes]] = {}
        for key in found:
            groups.setdefault(bucket_of_key(key), []).append(key)
        calls = [Call(VALUES_OF_KEYS, keys) for keys in groups.values()]
        for keys, flat in zip(groups.values(), self._client.run_many(calls), strict=True):
            for key, value, left in zip(keys, flat[::2], flat[1::2], strict=True):
                if value is not None:
                    ttl = None if left < 0 else left / 1000
                    yield self._records.info(found[key], value, ttl)
