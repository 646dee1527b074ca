"""What an operator should know of a Redis server that keeps locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError, ResponseError

from ..._compat import redis as compat
from ...exceptions import StoreUnavailable
from ..base import Finding
from .connections import Client
from .keys import Keys
from .script import Script

COUNT = Script("count")

# The first version with all commands that the scripts use.
MIN_REDIS_VERSION = (6, 2)


def findings(client: Client, keys: Keys, needed: int, *, listens: bool = True) -> Iterator[Finding]:
    """Ask the server, try what locks need, and yield what an operator should know.

    ``needed`` is how many replicas must have a lease before it counts; ``listens``: whether waiters
    listen there. Raises `StoreUnavailable`.
    """
    made = compat.make_connection(client.pool, compat.connection_options(client.pool))
    if made.socket_timeout is None:
        what = (
            "its cache has no socket timeout: if the server hangs, a call of the cache waits for "
            "ever, but a call of the locks does not"
        )
        mend = "Give the cache a SOCKET_TIMEOUT (django-redis) or a socket_timeout (Django)."
        yield Finding("socket_timeout", False, what, mend)
    lines = client.command("INFO").decode("utf-8", "replace").splitlines()
    info = {name: value for name, _, value in (line.partition(":") for line in lines)}
    version = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2])
    if "valkey_version" not in info and version < MIN_REDIS_VERSION:
        what = f"the server is Redis {info.get('redis_version')}"
        yield Finding("version", True, what, "The scripts need Redis 6.2 or later, or Valkey.")
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    if policy != "noeviction":
        danger = f"at {limit} bytes: a lock may be evicted" if limit else "(with no limit set yet)"
        what = f"the server's maxmemory-policy is {policy!r} {danger}"
        mend = "Give the locks a Redis whose maxmemory-policy is noeviction."
        yield Finding("eviction", limit > 0, what, mend)
    if info.get("role", "master") not in ("master", "primary"):
        what = "the server is a replica, which cannot grant a lease"
        yield Finding("replica", True, what, "Point the cache at the primary.")
        return
    replicas = int(info.get("connected_slaves", 0))
    if replicas < needed:
        what = f"the server has {replicas} replicas, and the option REPLICAS asks for {needed}"
        mend = "No lock can be acquired. Connect more replicas, or lower REPLICAS."
        yield Finding("replicas", True, what, mend)
    elif replicas and not needed:
        what = "the server has replicas: a failover may forget the last leases it granted"
        mend = "Give the guard a fence_field: the database then refuses a late writer."
        yield Finding("replication", False, what, mend)
    if said := _refusal(_write, client, keys):
        mend = "Do what the message says. Until then each acquire raises StoreUnavailable."
        yield Finding("write", True, f"no lock can be acquired: {said}", mend)
    if listens and (said := _refusal(_listen, client, keys)):
        mend = (
            "Do what the message says. Until then a call that waits for a lock raises "
            "StoreUnavailable, or asks again and again."
        )
        yield Finding("listen", True, f"nobody can wait for a lock: {said}", mend)


def _write(client: Client, keys: Keys) -> None:
    """Write what a lock needs, and leave nothing."""
    key = keys.key(" try")
    remove = ("DEL", key)
    client.run(COUNT, [keys.index])
    client.commands([
        ("SET", key, "", "PX", 1000), remove, ("HSET", key, "", ""), remove, ("ZADD", key, 0, ""),
        remove,
    ])  # fmt: skip


def _listen(client: Client, keys: Keys) -> None:
    """Listen, and tell a waiter nothing."""
    channel = keys.channels + b"try"
    connection: Any = client.new_connection()
    try:
        compat.connect(connection)
        compat.send(connection, compat.pack((b"SUBSCRIBE", channel)))
        if isinstance(answer := compat.read(connection), ResponseError):
            raise answer
    except (RedisError, OSError) as error:
        raise client.unavailable(error) from error
    finally:
        connection.disconnect()
    client.commands([("PUBSUB", "NUMSUB", channel), ("PUBLISH", channel, "")])


def _refusal(trial: Any, client: Client, keys: Keys) -> str:
    """What the server answers to a trial; empty if it does as it is told. Raises
    `StoreUnavailable` if it does not answer."""
    try:
        trial(client, keys)
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, ResponseError):
            raise
        return error.reason
    return ""
