"""One small adapter for each way to lock: acquire, acquire with waiting, release."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import redis

__all__ = ["FLOOR", "OURS", "OURS_ELSEWHERE", "PYTHON_REDIS_LOCK", "REDIS_PY", "Contender",
           "contender"]  # fmt: skip

FLOOR = "the floor"
OURS = "django-tasklock"
OURS_ELSEWHERE = "django-tasklock, holder on another machine"
REDIS_PY = "redis-py's Lock"
PYTHON_REDIS_LOCK = "python-redis-lock"

DELETE_IF_MINE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class Contender:
    """Peers that make an object for each lock; the others differ."""

    def __init__(self, new: Callable[[str], Any]) -> None:
        self._new = new

    def acquire(self, name: str, *, wait: bool = False) -> Any:
        """Whatever releases it, or None at once if it is taken."""
        lock = self._new(name)
        return lock if lock.acquire(blocking=wait) else None

    def release(self, held: Any) -> None:
        held.release()


class _Floor(Contender):
    """The least that is a lock: two commands."""

    def __init__(self, url: str, ttl: int) -> None:
        self._redis, self._ttl = redis.Redis.from_url(url), ttl
        self._sha: Any = self._redis.script_load(DELETE_IF_MINE)

    def acquire(self, name: str, *, wait: bool = False) -> Any:
        token = os.urandom(16)
        return (name, token) if self._redis.set(name, token, nx=True, px=self._ttl * 1000) else None

    def release(self, held: Any) -> None:
        self._redis.evalsha(self._sha, 1, *held)


class _Ours(Contender):
    def __init__(self, alias: str, ttl: int) -> None:
        # Models are not loaded yet when this module is imported.
        self._locks = import_module("django_tasklock").locks.using(alias)
        self._ttl = ttl

    def acquire(self, name: str, *, wait: bool = False) -> Any:
        return self._locks.acquire(name, ttl=self._ttl, wait=None if wait else 0)


@cache
def contender(name: str, url: str, ttl: int = 60) -> Contender:
    """The adapter, one for each process, proven to lock: it excludes, and lets go."""
    made = _made(name, url, ttl)
    proof = f"proof:{os.getpid()}"
    for _ in range(2):
        held = made.acquire(proof)
        assert held is not None, f"{name}: a lock that nobody holds was refused"
        assert made.acquire(proof) is None, f"{name}: two hold one lock"
        made.release(held)
    return made


def _made(name: str, url: str, ttl: int) -> Contender:
    if name == FLOOR:
        return _Floor(url, ttl)
    if name in (OURS, OURS_ELSEWHERE):
        return _Ours("default" if name == OURS else "elsewhere", ttl)
    client = redis.Redis.from_url(url)
    if name == REDIS_PY:
        return Contender(lambda lock: client.lock(lock, timeout=ttl))
    logging.getLogger("redis_lock").setLevel(logging.ERROR)  # It warns of every refusal.
    new = import_module("redis_lock").Lock
    return Contender(lambda lock: new(client, lock, expire=ttl))
