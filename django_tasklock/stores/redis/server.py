"""What a Redis server says of itself that matters to locks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..base import Finding
from .client import Client
from .connections import waits_for_ever

__all__ = ["findings"]

FAR = 1.0
"""seconds between two clocks that are worth a word"""
SLOW = 0.05
"""seconds for one answer that are worth a word"""
OLDEST = (6, 2)
"""the first version with all that the scripts use"""


def findings(client: Client) -> Iterator[Finding]:
    """Ask the server (INFO, TIME) and yield what an operator should know.

    Raises `StoreUnavailable`.
    """
    if waits_for_ever(client.pool):
        yield Finding(
            "socket_timeout",
            False,
            "its cache has no socket timeout: who uses the cache waits for ever for a server that "
            "hangs, though who uses the locks does not",
            "Give the cache a SOCKET_TIMEOUT (django-redis) or a socket_timeout (Django) in its "
            "OPTIONS.",
        )
    lines = client.ask("INFO").decode("utf-8", "replace").splitlines()
    info = {name: value for name, _, value in (line.partition(":") for line in lines)}
    yield from _clock(client)
    version = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2])
    if "valkey_version" not in info and version < OLDEST:
        yield Finding(
            "version",
            True,
            f"the server is Redis {info.get('redis_version')}",
            "The scripts need Redis 6.2 or later, or Valkey.",
        )
    policy = info.get("maxmemory_policy", "noeviction")
    limit = int(info.get("maxmemory", 0))
    if policy != "noeviction":
        yield Finding(
            "eviction",
            limit > 0,
            f"the server's maxmemory-policy is {policy!r} "
            + (f"at {limit} bytes: a lock may be evicted" if limit else "(with no limit set yet)"),
            "Give the locks a Redis whose maxmemory-policy is noeviction.",
        )
    if info.get("role", "master") not in ("master", "primary"):
        yield Finding(
            "replica",
            True,
            "the server is a replica, which cannot grant a lease",
            "Point the cache at the primary.",
        )
    elif int(info.get("connected_slaves", 0)):
        yield Finding(
            "replication",
            False,
            "the server has replicas: a failover may forget the last leases it granted",
            "Give the guard a fence_field: a database that refuses a late writer is not fooled.",
        )


def _clock(client: Client) -> Iterator[Finding]:
    """How far the server's clock is from ours, and how long it takes to ask: the best of five."""
    rounds = []
    for _ in range(5):
        asked = time.time()
        seconds, microseconds = client.ask("TIME")
        answered = time.time()
        theirs = int(seconds) + int(microseconds) / 1_000_000
        rounds.append((answered - asked, theirs - (asked + answered) / 2))
    latency, ahead = min(rounds)
    where = "ahead of" if ahead > 0 else "behind"
    if abs(ahead) > FAR + latency / 2:
        yield Finding(
            "clock",
            False,
            f"the server's clock is {abs(ahead):.1f} s {where} ours",
            "Leases do not mind; what is shown as their age does. Let both keep time (NTP).",
        )
    if latency > SLOW:
        yield Finding(
            "latency",
            False,
            f"the server takes {latency * 1000:.0f} ms to answer",
            "A task waits that long twice for its lock.",
        )
