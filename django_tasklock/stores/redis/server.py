"""What an operator should know of a Redis server that keeps locks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from redis.exceptions import ResponseError

from ...exceptions import StoreUnavailable
from ..base import CannotSubscribe, Finding
from ..record import fence_of
from .connections import has_no_timeout
from .keyspace import Keyspace
from .script import Script
from .server_client import ServerClient
from .subscriber import Subscriber

__all__ = ["findings", "next_fence"]

TRY_WRITE = Script("try_write")
TRY_TELL = Script("try_tell")

CLOCK_OFFSET_SECONDS = 1.0
"""clocks that differ by more are reported"""
SLOW_ANSWER_SECONDS = 0.05
"""a server that takes longer to answer is reported"""
MIN_REDIS_VERSION = (6, 2)
"""the first version with all commands that the scripts use"""


def findings(
    client: ServerClient,
    needed: int,
    keyspace: Keyspace,
    subscriber: Subscriber,
    tell: Script = TRY_TELL,
) -> Iterator[Finding]:
    """Ask the server (INFO, TIME), try what locks need, and yield what an operator should know.

    ``needed`` is how many replicas must have a lease before it counts. ``keyspace``: keys that the
    server serves. ``subscriber`` is used for nothing else. Raises `StoreUnavailable`.
    """
    if has_no_timeout(client.pool):
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
    if "valkey_version" not in info and version < MIN_REDIS_VERSION:
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
        return
    yield from _refused(client, keyspace, subscriber, tell)
    if int(info.get("connected_slaves", 0)) < needed:
        yield Finding(
            "replicas",
            True,
            f"the server has {info.get('connected_slaves', 0)} replicas, and REPLICAS is {needed}: "
            "no lock can be acquired",
            "Connect more replicas, or lower REPLICAS in the store's OPTIONS.",
        )
    elif int(info.get("connected_slaves", 0)) and not needed:
        yield Finding(
            "replication",
            False,
            "the server has replicas: a failover may forget the last leases it granted",
            "Give the guard a fence_field: the database then refuses a late writer.",
        )


def _refused(
    client: ServerClient, keyspace: Keyspace, subscriber: Subscriber, tell: Script
) -> Iterator[Finding]:
    """Try to write, to listen and to tell a waiter. Nothing is left of it."""
    try:
        client.run(TRY_WRITE, (keyspace.note_key("try"),))
    except StoreUnavailable as error:
        yield Finding(
            "write",
            True,
            f"no lock can be acquired: {_said(error)}",
            "Do what the message says. Until then each acquire raises StoreUnavailable.",
        )
    try:
        channel = subscriber.join(keyspace.channels)
        subscriber.leave(channel, keep=False)
        client.run(tell, (), (channel.name,))
    except (StoreUnavailable, CannotSubscribe) as error:
        yield Finding(
            "listen",
            True,
            f"nobody can wait for a lock: {_said(error)}",
            "Do what the message says. Until then whoever has to wait for a lock gets a "
            "StoreUnavailable, or asks again and again.",
        )
    finally:
        subscriber.close_idle()


def _said(error: StoreUnavailable | CannotSubscribe) -> str:
    """What the server answered. Raises the error if it did not answer."""
    if isinstance(error, CannotSubscribe):
        return f"no connection to listen on can be had: {error.__cause__ or 'no answer'}"
    if not isinstance(error.__cause__, ResponseError):
        raise error
    return error.reason


def next_fence(client: ServerClient, fences: bytes) -> int:
    """Return what the script ``next_fence.lua`` would return now, and change nothing.

    ``fences`` is the key of the fences. Raises `StoreUnavailable`.
    """
    seconds, microseconds = client.ask("TIME")
    last = client.ask("HGET", [fences], b"")
    now = int(seconds) * 1_000_000 + int(microseconds)
    return max(now, ((fence_of(last) if last is not None else None) or 0) + 1)


def _clock(client: ServerClient) -> Iterator[Finding]:
    """Measure the offset of the server's clock, and its latency: the best of five rounds."""
    rounds = []
    for _ in range(5):
        asked = time.time()
        seconds, microseconds = client.ask("TIME")
        answered = time.time()
        theirs = int(seconds) + int(microseconds) / 1_000_000
        rounds.append((answered - asked, theirs - (asked + answered) / 2))
    latency, ahead = min(rounds)
    where = "ahead of" if ahead > 0 else "behind"
    if abs(ahead) > CLOCK_OFFSET_SECONDS + latency / 2:
        yield Finding(
            "clock",
            False,
            f"the server's clock is {abs(ahead):.1f} s {where} ours",
            "It changes no lease, only the age that is shown. Keep both in step (NTP).",
        )
    if latency > SLOW_ANSWER_SECONDS:
        yield Finding(
            "latency",
            False,
            f"the server takes {latency * 1000:.0f} ms to answer",
            "A task waits that long twice for its lock.",
        )
