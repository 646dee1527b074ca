"""Locks on a Redis Cluster: spread over buckets, each of which is like a store of its own."""

from __future__ import annotations

import builtins
import heapq
from binascii import crc_hqx
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..._values.event import Event
from ..._values.lock_info import LockInfo
from ..._values.slots import base_of
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig, StoreUnavailable
from ..base import BaseStore, Extension, Finding, Grant, Note, Refusal
from ..records import FREE, Change, Done, Entry, Held, fits, left_of, note_name
from ..redis.caches import Encoding
from ..redis.check import findings
from ..redis.connections import Client
from ..redis.keys import Keys
from ..redis.store import RedisStore
from .nodes import LOCATION_OPTION, POOL_OPTION, Address, Nodes, SlotClient

__all__ = ["BUCKETS", "SLOTS", "RedisClusterStore", "bucket_of"]

# Not to be changed: two processes that disagree about it would not exclude each other. A list reads
# the index of each bucket; the locks can be on as many masters as there are buckets.
BUCKETS = 64
SLOTS_OF_A_CLUSTER = 16384


def _slot_of(text: str) -> int:
    # Redis's CRC16.
    return crc_hqx(text.encode(), 0) % SLOTS_OF_A_CLUSTER


def _tags() -> list[str]:
    """For each bucket the smallest number whose slot is in the bucket's part of all slots, so that
    masters with as many slots have as many buckets."""
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < BUCKETS:
        tags.setdefault(_slot_of(str(number)) * BUCKETS // SLOTS_OF_A_CLUSTER, str(number))
        number += 1
    return [tags[bucket] for bucket in range(BUCKETS)]


TAGS = _tags()
# The slot of each bucket, in ascending order.
SLOTS = [*map(_slot_of, TAGS)]


def bucket_of(name: str) -> int:
    """The bucket of a lock or a note, by a number from 0 on.

    The permits of a name are in one bucket, since one script grants one of them. The reservation of
    a job is in that of the job's lock, whose name is the last word of the key.
    """
    return crc_hqx(base_of(name.rpartition(" ")[2], 1).encode(), 0) % BUCKETS


class _Bucket(RedisStore):
    """The locks of one slot. All of its keys have the same hash tag."""

    uses_cache = False
    known_options = frozenset({LOCATION_OPTION, POOL_OPTION})

    def __init__(self, settings: StoreSettings, nodes: Nodes, number: int) -> None:
        self.number = number
        self._nodes = nodes
        super().__init__(settings)

    def _server(self) -> tuple[Client, Encoding, Keys]:
        prefix = self.settings.key_prefix
        tagged = f"{prefix}:{{{TAGS[self.number]}}}" if prefix else f"{{{TAGS[self.number]}}}"
        client = SlotClient(self._nodes, SLOTS[self.number])
        return client, Encoding(str), Keys(str, tagged, self.alias, prepends=True)


class RedisClusterStore(BaseStore):
    """Locks on a Redis Cluster or a Valkey cluster, without a cache.

    Each verb about one lock is one script at the node that has the lock's slot; the scripts are
    those of `RedisStore`. Waiters poll: there is no wait queue. Several changes of one `put` are
    made together only in one bucket.

    A lock's fences grow as long as its slot's master keeps its data, wherever the slot moves. After
    a failover to a replica that missed the last lease they still grow, unless that node's clock is
    behind by more than the time between the two leases. Fences of different locks are comparable
    only as far as the nodes' clocks agree.
    """

    puts_together = False
    fences_are_times = True
    supports_history = True
    known_options = _Bucket.known_options | RedisStore.known_options

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if set("{}") & set(settings.key_prefix):
            raise InvalidLockConfig(
                f"the KEY_PREFIX of the lock store {self.alias!r} is {settings.key_prefix!r}: on a "
                "cluster it has no braces, with which the store says in which slot a key is"
            )
        self.nodes = Nodes(settings, SLOTS)
        self.buckets = [_Bucket(settings, self.nodes, number) for number in range(BUCKETS)]

    # The three methods of a store.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        names = [change.name for change in changes]
        parts = self._by_bucket(names)
        if len(parts) == 1:
            return parts[0][0].put(changes, least_fence)
        there = self.get(names)
        if not all(map(fits, changes, there)):
            return Done(False, there)
        made: builtins.list[Change] = []
        for bucket, places in parts:
            part = [changes[place] for place in places]
            if not bucket.put(part, least_fence).made:
                for name, expect, record, _ in made:
                    if expect == FREE and isinstance(record, Mapping):
                        self.put([Change(name, Held(record["token"]), None)])
                return Done(False, self.get(names))
            made += part
        return Done(True, self.get(names))

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        found: dict[int, Entry | None] = {}
        for bucket, places in self._by_bucket(names):
            found |= zip(places, bucket.get([names[place] for place in places]), strict=True)
        return [found[place] for place in range(len(names))]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return heapq.merge(*(bucket.list(prefix) for bucket in self.buckets), key=left_of)

    # Verbs that are one script, or a few.

    def acquire(
        self,
        names: Sequence[str],
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
    ) -> Grant | Refusal:
        bucket = self._bucket(names[0])
        if note is None or self._bucket(note_name(note.key)) is bucket:
            return bucket.acquire(names, token, ttl, owner, note)
        answer = bucket.acquire(names, token, ttl, owner)
        if isinstance(answer, Refusal):
            return answer
        return answer._replace(noted=self.put([self._noting(note, FREE)]).made)

    def extend(self, name: str, token: str, ttl: float) -> bool:
        return self._bucket(name).extend(name, token, ttl)

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        done: dict[int, bool] = {}
        masters, silent = self.nodes.masters, set()
        for bucket, places in self._by_bucket([each.name for each in batch]):
            master = masters.get(SLOTS[bucket.number])
            if master in silent:
                continue  # Each question to it would take as long as the first one.
            try:
                part = bucket.extend_many([batch[place] for place in places])
            except StoreUnavailable as error:
                silent.add(master)
                failure = error
            else:
                done |= zip(places, part, strict=True)
        if batch and not done:
            raise failure
        return [done.get(place) for place in range(len(batch))]

    def release(self, name: str, token: str, note: Note | None = None) -> bool:
        bucket = self._bucket(name)
        if note is None or self._bucket(note_name(note.key)) is bucket:
            return bucket.release(name, token, note)
        return super().release(name, token, note)

    def count(self, prefix: str = "") -> int:
        return sum(bucket.count(prefix) for bucket in self.buckets)

    # What the store has beside these.

    def key(self, name: str) -> str:
        return self._bucket(name).key(name)

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        for bucket in self.buckets:
            yield from bucket.endless(prefix)

    @property
    def keeps_history(self) -> bool:
        return self.buckets[0].keeps_history

    def record(self, events: Sequence[Event]) -> None:
        self.buckets[0].record(events)

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        return self.buckets[0].events(name, task_id, limit)

    def check(self) -> Iterable[Finding]:
        together: dict[Finding, builtins.list[str]] = {}
        masters = self._one_of_each_master()
        for (host, port), bucket in masters.items():
            found = [
                *findings(bucket.client, bucket.keys, bucket.replicas.needed, listens=False),
                *_without_replica(bucket.client),
            ]
            for finding in found:
                together.setdefault(finding, []).append(f"{host}:{port}")
        for finding, where in together.items():
            who = "every master" if len(where) == len(masters) else ", ".join(where)
            yield replace(finding, message=f"of {who}: {finding.message}")

    def uptime(self) -> float:
        return min(bucket.uptime() for bucket in self._one_of_each_master().values())

    def close_idle(self) -> None:
        self.nodes.close_idle()

    def _one_of_each_master(self) -> dict[Address, _Bucket]:
        return {
            master: self.buckets[SLOTS.index(slot)] for slot, master in self.nodes.learned().items()
        }

    def _bucket(self, name: str) -> _Bucket:
        return self.buckets[bucket_of(name)]

    def _by_bucket(self, names: Sequence[str]) -> builtins.list[tuple[_Bucket, builtins.list[int]]]:
        """The buckets of some names, each with the places of its own among them."""
        places: dict[int, builtins.list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(bucket_of(name), []).append(place)
        return [(self.buckets[number], part) for number, part in places.items()]


def _without_replica(client: Client) -> Iterator[Finding]:
    if b"connected_slaves:0" in client.command("INFO", "replication"):
        what = "it has no replica: while it is down, its locks are unavailable"
        yield Finding("no_replica", False, what, "Give it one (CLUSTER REPLICATE).")
