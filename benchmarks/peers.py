"""One small adapter for each way to lock: acquire, release, and acquire with waiting."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol

import redis
from django.core.cache import cache

from django_tasklock import locks

__all__ = ["FLOOR", "OURS", "Column", "NotALock", "columns", "make", "prove"]

FLOOR = "floor: SET NX PX + EVALSHA"
OURS = "django-tasklock"
TTL_SECONDS = 60

DELETE_IF_MINE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class NotALock(AssertionError):
    """A column let two holders in, or kept its lock after the release."""


class Column(Protocol):
    """One way to lock."""

    def acquire(self, name: str) -> Any:
        """Whatever releases it, or None at once if it is taken. It lasts `TTL_SECONDS`."""

    def wait(self, name: str) -> Any:
        """The same, waiting for it."""

    def release(self, held: Any) -> None:
        """Give it back."""


class Ours:
    def __init__(self, url: str) -> None:
        self._locks = locks

    def acquire(self, name: str) -> Any:
        return self._locks.acquire(name, ttl=TTL_SECONDS)

    def wait(self, name: str) -> Any:
        return self._locks.acquire(name, ttl=TTL_SECONDS, wait=None)

    def release(self, held: Any) -> None:
        held.release()


class Floor:
    """The least that is a lock: two commands of redis-py with hiredis."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._sha: Any = self._redis.script_load(DELETE_IF_MINE)

    def acquire(self, name: str) -> Any:
        token = os.urandom(16)
        return (
            (name, token) if self._redis.set(name, token, nx=True, px=TTL_SECONDS * 1000) else None
        )

    def wait(self, name: str) -> Any:
        raise NotImplementedError

    def release(self, held: Any) -> None:
        name, token = held
        self._redis.evalsha(self._sha, 1, name, token)


class CacheAdd:
    """The usual recipe: nothing tells the next holder's lock from one's own."""

    def __init__(self, url: str) -> None:
        self._cache = cache

    def acquire(self, name: str) -> Any:
        return name if self._cache.add(name, "locked", TTL_SECONDS) else None

    def wait(self, name: str) -> Any:
        raise NotImplementedError

    def release(self, held: Any) -> None:
        self._cache.delete(held)


class LockObjects:
    """Peers that make an object for each lock, with acquire(blocking) and release()."""

    def __init__(self, new: Callable[[str], Any]) -> None:
        self._new = new

    def acquire(self, name: str) -> Any:
        lock = self._new(name)
        return lock if lock.acquire(blocking=False) else None

    def wait(self, name: str) -> Any:
        lock = self._new(name)
        return lock if lock.acquire(blocking=True) else None

    def release(self, held: Any) -> None:
        held.release()


class Redlock:
    """redlock-py, whose refusals sleep."""

    def __init__(self, url: str) -> None:
        self._manager: Any = import_module("redlock").Redlock(
            [redis.Redis.from_url(url)], retry_count=1, retry_delay=0.001
        )

    def acquire(self, name: str) -> Any:
        return self._manager.lock(name, TTL_SECONDS * 1000) or None

    def wait(self, name: str) -> Any:
        raise NotImplementedError

    def release(self, held: Any) -> None:
        self._manager.unlock(held)


def _redis_py(url: str) -> Column:
    client = redis.Redis.from_url(url)
    return LockObjects(lambda name: client.lock(name, timeout=TTL_SECONDS))


def _django_redis(_url: str) -> Column:
    lock = getattr(cache, "lock")  # noqa: B009 - django-redis's own
    return LockObjects(lambda name: lock(name, timeout=TTL_SECONDS))


def _python_redis_lock(url: str) -> Column:
    new = import_module("redis_lock").Lock
    client = redis.Redis.from_url(url)
    return LockObjects(lambda name: new(client, name, expire=TTL_SECONDS))


def _pottery(url: str) -> Column:
    new = import_module("pottery").Redlock
    masters = {redis.Redis.from_url(url)}
    return LockObjects(lambda name: new(key=name, masters=masters, auto_release_time=TTL_SECONDS))


def _sherlock(url: str) -> Column:
    new = import_module("sherlock").RedisLock
    client = redis.Redis.from_url(url)
    return LockObjects(lambda name: new(name, client=client, expire=TTL_SECONDS, timeout=600))


def _django_cache_lock(_url: str) -> Column:
    new = import_module("django_lock").lock
    return LockObjects(lambda name: new(name, client=cache, timeout=TTL_SECONDS))


MAKERS: dict[str, Callable[[str], Column]] = {
    FLOOR: Floor,
    OURS: Ours,
    "redlock-py": Redlock,
    "redis-py Lock": _redis_py,
    "cache.add + delete": CacheAdd,
    "django-redis lock": _django_redis,
    "python-redis-lock": _python_redis_lock,
    "django-cache-lock": _django_cache_lock,
    "sherlock": _sherlock,
    "pottery": _pottery,
}


def make(name: str, url: str) -> Column:
    """The column's adapter. Raises `ImportError` where the peer is not installed."""
    return MAKERS[name](url)


def columns(
    url: str, say: Callable[[str], None], names: Iterable[str] = MAKERS
) -> dict[str, Column]:
    """The columns that can be had here, proven to lock; ``say`` is told of the others."""
    logging.getLogger("redis_lock").setLevel(logging.ERROR)  # It warns of every refusal.
    found: dict[str, Column] = {}
    for name in names:
        try:
            column = make(name, url)
        except ImportError as error:
            say(f"{name} is not installed, and left out ({error.name})")
            continue
        prove(name, column)
        found[name] = column
    return found


def prove(title: str, column: Column) -> None:
    """Raise `NotALock` unless the column excludes, and lets go."""
    name = f"proof-{title.replace(' ', '-').replace(':', '')}-{os.getpid()}"
    for _ in range(2):
        held = column.acquire(name)
        if held is None:
            raise NotALock(f"{title}: a lock that nobody holds was refused")
        if column.acquire(name) is not None:
            raise NotALock(f"{title}: two hold one lock")
        column.release(held)
