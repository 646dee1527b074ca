"""What an operator should know of a Redis server that keeps locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import ResponseError

from ...exceptions import StoreUnavailable
from ..base import CannotSubscribe, Finding
from .connections import Client
from .keys import Keys
from .listener import Hearing, Listener

# The first version with all commands that the scripts use.
MIN_REDIS_VERSION = (6, 2)


def findings(store: Any, *, in_cluster: bool = False) -> Iterator[Finding]:
    """Ask the server of a `RedisStore`, try what locks need, and yield what an operator should
    know.

    ``in_cluster``: it is a master of a cluster, where nobody waits in a queue. Raises
    `StoreUnavailable`.
    """
    client, keys, needed = store.client, store.keys, store.replicas.needed
    info: dict[str, str] = {}
    if said := _refusal(lambda: info.update(client.info())):
        what = f"its memory and its replicas are not known: {said}"
        yield Finding("info", False, what, "Allow its user to ask for INFO.")
    elif info.get("role", "master") not in ("master", "primary"):
        what = "the server is a replica, which cannot grant a lease"
        yield Finding("replica", True, what, "Point the cache at the primary.")
        return
    else:
        yield from _of_info(info, needed, in_cluster=in_cluster)
    if said := _refusal(lambda: _write(client, keys, waits=needed > 0)) or store.cannot_write():
        mend = "Do what the message says. Until then each acquire raises StoreUnavailable."
        yield Finding("write", True, f"no lock can be acquired: {said}", mend)
    if not in_cluster and (said := _refusal(lambda: _listen(client, keys))):
        mend = (
            "Do what the message says. Until then a call that waits for a lock raises "
            "StoreUnavailable, or asks again and again."
        )
        yield Finding("listen", True, f"nobody can wait for a lock: {said}", mend)


def _of_info(info: dict[str, str], needed: int, *, in_cluster: bool) -> Iterator[Finding]:
    """What the answer to INFO says."""
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
    replicas = int(info.get("connected_slaves", 0))
    if replicas < needed:
        what = f"the server has {replicas} replicas, and the option REPLICAS asks for {needed}"
        mend = "No lock can be acquired. Connect more replicas, or lower REPLICAS."
        yield Finding("replicas", True, what, mend)
    elif replicas and not needed:
        what = "the server has replicas: a failover may forget the last leases it granted"
        mend = "Give the guard a fence_field: the database then refuses a late writer."
        yield Finding("replication", False, what, mend)
    if in_cluster and not replicas:
        what = "it has no replica: while it is down, its locks are unavailable"
        yield Finding("no_replica", False, what, "Give it one (CLUSTER REPLICATE).")


def _write(client: Client, keys: Keys, *, waits: bool) -> None:
    """Write what a lock needs, and leave nothing: of these commands the server says which one it
    refuses. ``waits``: for replicas."""
    key = keys.of(" try").key
    remove = "DEL", key
    client.commands([
        ("SET", key, "", "PX", 1000), remove, ("HSET", key, "", ""), remove, ("ZADD", key, 0, ""),
        remove, *[("WAIT", 0, 1)] * waits,
    ])  # fmt: skip


def _listen(client: Client, keys: Keys) -> None:
    """Listen, and tell a waiter nothing."""
    channel = keys.channels + b"try"
    listener, nobody = Listener(client, keys.channels, threaded=False), Hearing("")
    try:
        listener.subscribe(nobody)
    except CannotSubscribe as error:
        raise StoreUnavailable(client.alias, str(error.__cause__)) from error
    finally:
        listener.remove(nobody)
        listener.close_idle()
    client.commands([("PUBSUB", "NUMSUB", channel), ("PUBLISH", channel, "")])


def _refusal(trial: Callable[[], None]) -> str:
    """What the server answers to a trial; empty if it does as it is told. Raises
    `StoreUnavailable` if it does not answer."""
    try:
        trial()
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, ResponseError):
            raise
        return error.reason
    return ""
