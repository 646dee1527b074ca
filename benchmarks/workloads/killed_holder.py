"""A waiter whose holder is killed: how long after the end of the dead one's lease it wakes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from importlib import import_module
from threading import Thread
from typing import Any

import redis
from django.core.cache import cache

from django_tasklock import locks

from ..bench import Bench, set_up_site
from ..peers import OURS, LockObjects
from ..rounds import Spread
from ..tables import Cell, Table

__all__ = ["run"]

KILLED_LOCK = "killed"


def run(bench: Bench) -> list[Table]:
    ttl, rounds = bench.pick((1, 1), (2, 15))
    rows: list[dict[str, Cell]] = []
    for title, make in HOLDER_MAKERS.items():
        late, after = [], []
        try:
            for _ in range(rounds):
                since_end, since_kill = _measure(bench, title, make(bench.url, ttl), ttl)
                late.append(since_end * 1000)
                after.append(since_kill * 1000)
        except ImportError:
            bench.say(f"{title} is not installed, and left out")
            continue
        rows.append(
            {
                "column": title,
                "after the kill, ms": Spread.of(after),
                "after the lease's end, ms": Spread.of(late),
                "worst, ms": max(late),
            }
        )
    title = f"A waiter on a holder that is killed, leases of {ttl} s"
    return [Table("killed-holder", title, rows, "after the lease's end, ms")]


def _measure(bench: Bench, title: str, column: Any, ttl: int) -> tuple[float, float]:
    """The holder is killed in the middle of its lease; this process waits in the meantime."""
    bench.redis.flushall()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(title, bench.url, ttl, theirs), daemon=True)
    holder.start()
    ours.recv()
    # One key alone ends by itself: the lock's.
    ends = (
        time.monotonic()
        + min(left for key in bench.redis.keys("*") if (left := bench.redis.pttl(key)) > 0) / 1000
    )
    killed: list[float] = []

    def kill() -> None:
        time.sleep(ttl / 2)
        killed.append(time.monotonic())
        holder.kill()

    killer = Thread(target=kill)
    killer.start()
    held = column.wait(KILLED_LOCK)
    now = time.monotonic()
    assert held is not None
    killer.join()
    holder.join()
    column.release(held)
    assert now > killed[0], f"{title}: two hold one lock"
    return now - ends, now - killed[0]


def _hold(title: str, url: str, ttl: int, pipe: Any) -> None:
    set_up_site()
    held = HOLDER_MAKERS[title](url, ttl).acquire(KILLED_LOCK)
    assert held is not None
    pipe.send("held")
    time.sleep(600)


class Ours:
    """Our lock, on the same machine or as if the holder were on another one."""

    def __init__(self, ttl: int, alias: str) -> None:
        self._ttl = ttl
        self._locks = locks.using(alias)

    def acquire(self, name: str) -> Any:
        return self._locks.acquire(name, ttl=self._ttl)

    def wait(self, name: str) -> Any:
        return self._locks.acquire(name, ttl=self._ttl, wait=60)

    def release(self, held: Any) -> None:
        held.release()


def _python_redis_lock(url: str, ttl: int) -> Any:
    new, client = import_module("redis_lock").Lock, redis.Redis.from_url(url)
    return LockObjects(lambda name: new(client, name, expire=ttl))


def _redis_py(url: str, ttl: int) -> Any:
    client = redis.Redis.from_url(url)
    return LockObjects(lambda name: client.lock(name, timeout=ttl))


def _django_redis(_url: str, ttl: int) -> Any:
    lock = getattr(cache, "lock")  # noqa: B009 - django-redis's own
    return LockObjects(lambda name: lock(name, timeout=ttl))


HOLDER_MAKERS: dict[str, Callable[[str, int], Any]] = {
    f"{OURS}, the same machine": lambda _url, ttl: Ours(ttl, "default"),
    f"{OURS}, another machine": lambda _url, ttl: Ours(ttl, "elsewhere"),
    "python-redis-lock": _python_redis_lock,
    "redis-py Lock": _redis_py,
    "django-redis lock": _django_redis,
}
