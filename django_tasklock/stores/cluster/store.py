"""Leases on a Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..._values.lock_info import LockInfo
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from ..base import Extension, Finding
from ..redis.client import milliseconds
from ..redis.leases import RedisLeases
from ..redis.server_client import Call
from ..redis.store import EXTEND, LEASES_PER_SCRIPT, WHICH_ARE_HELD
from .bucket_channels import BucketChannels
from .buckets import ClusterKeyspace, bucket_of
from .client import ClusterClient
from .cluster_check import cluster_findings, greatest_next_fence
from .cluster_listing import ClusterListing
from .cluster_notes import ClusterNotes
from .location import LOCATION_OPTION, POOL_OPTION, Location

__all__ = ["RedisClusterStore"]


class RedisClusterStore(ClusterNotes):
    """Leases on a Redis Cluster (Redis 7.0 or later, or Valkey), without a cache.

    Each verb about one lock is one script at the node that has the lock's slot; the scripts are
    those of `RedisStore`. `ClusterKeyspace` says which keys there are.

    A lock's fences grow as long as its slot's master keeps its data, wherever the slot moves. After
    a failover to a replica that missed the last lease they still grow, unless that node's clock is
    behind by more than the time between the two leases. Fences of different locks are comparable
    only as far as the nodes' clocks agree.
    """

    known_options = RedisLeases.known_options | {LOCATION_OPTION, POOL_OPTION}

    def __init__(self, settings: StoreSettings) -> None:
        location = Location(settings)
        keyspace = ClusterKeyspace(settings.key_prefix, settings.alias)
        client = ClusterClient(settings.alias, location, keyspace)
        super().__init__(settings, client, keyspace)
        self.topology = client.topology
        self._listing = ClusterListing(client, keyspace, self.records)

    def close_idle(self) -> None:
        self.client.close_idle()

    def shard(self, name: str) -> str:
        return self.topology.shard(bucket_of(name))

    def subscriber_of(self, name: str) -> BucketChannels:
        bucket = bucket_of(name)
        return BucketChannels(self.topology, bucket, self.keyspace.prefixes[bucket])

    def held(self, names: Sequence[str]) -> set[str]:
        groups = list(_by_bucket({name: name for name in names}.items()))
        calls = [
            Call(WHICH_ARE_HELD, [self.keyspace.key(name).encode() for name in group])
            for group in groups
        ]
        found: set[str] = set()
        for group, answers in zip(groups, self.client.run_many(calls), strict=True):
            found.update(name for name, held in zip(group, answers, strict=True) if held)
        return found

    def _groups(self, names: Sequence[str]) -> Iterator[Sequence[int]]:
        return _by_bucket((name, at) for at, name in enumerate(names))

    def _look(self, calls: Sequence[Call]) -> list[Any]:
        return self.client.run_many(calls)

    def _extend(self, batch: Sequence[Extension], *, private: bool) -> list[bool]:
        if len(batch) == 1:
            return [self._extend_one(batch[0], private=private)]
        groups = list(_by_bucket((each.name, at) for at, each in enumerate(batch)))
        calls = [self._extend_call([batch[at] for at in group]) for group in groups]
        done = [False] * len(batch)
        for group, reply in zip(groups, self.client.run_many(calls, private=private), strict=True):
            for at, extended in zip(group, reply, strict=True):
                done[at] = bool(extended)
        return done

    def _extend_one(self, extension: Extension, *, private: bool) -> bool:
        # A renewal that a failover forgets is made good by the next one, long before its end.
        wait = None if private else self.replicas.wait(milliseconds(extension.ttl))
        call = self._extend_call([extension])
        done = bool(self.client.run(*call, private=private, wait=wait)[0])
        if wait is not None and not wait.enough and done:
            raise StoreUnavailable(self.alias, f"{extension.name} is not extended: {wait}")
        return done

    def _extend_call(self, batch: Sequence[Extension]) -> Call:
        """The script that extends leases of one bucket."""
        keys = [self.keyspace.of(batch[0].name).index]
        args: list[Any] = []
        for name, token, ttl, proof in batch:
            keys.append(self.keyspace.key(name).encode())
            args += proof or self._value_of(name, token) or b"", milliseconds(ttl), name
        return Call(EXTEND, keys, args)

    def next_fence(self) -> int:
        """The greatest one of any lock's: each bucket has fences of its own."""
        return greatest_next_fence(self.topology, self.keyspace)

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        return self._listing.list(prefix, limit, offset)

    def count(self, prefix: str = "") -> int:
        return self._listing.count(prefix)

    def walk(self, prefix: str = "") -> Iterator[LockInfo]:
        return self._listing.walk(prefix)

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        return self._listing.scan(prefix)

    def check(self) -> Iterable[Finding]:
        return cluster_findings(self.topology, self.replicas.needed, self.keyspace)


def _by_bucket(items: Iterable[tuple[str, Any]]) -> Iterator[list[Any]]:
    """The values of ``(name, value)``, in lists of at most `LEASES_PER_SCRIPT` of one bucket."""
    groups: dict[int, list[Any]] = {}
    for name, value in items:
        groups.setdefault(bucket_of(name), []).append(value)
    for group in groups.values():
        for start in range(0, len(group), LEASES_PER_SCRIPT):
            yield group[start : start + LEASES_PER_SCRIPT]
