"""Many leases kept alive by one process: threads, memory, round trips, processor time, losses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import redis

from ..bench import Bench
from ..contenders import OURS, PYTHON_REDIS_LOCK, installed
from ..crew import ask, crew
from ..tables import Cell, Table

__all__ = ["run"]


def run(bench: Bench) -> Table:
    ttl = bench.pick(3, 30)
    # Ten thousand threads of the peer starve the machine.
    counts = {OURS: bench.pick(100, 10_000), PYTHON_REDIS_LOCK: bench.pick(50, 1_000)}
    rows = [_measure(bench, name, counts[name], ttl) for name in installed(*counts)]
    note = (
        f"Leases of {ttl} s in one process, looked at for {ttl} s. Threads and memory are what the "
        "process has more than before."
    )
    return Table("Renewal", note, rows)


def _measure(bench: Bench, name: str, count: int, ttl: int) -> dict[str, Cell]:
    """Hold them in a process of their own, and look from here."""
    with crew(1) as (holder,):
        try:
            threads, resident, _ = ask(holder, usage)
            ask(holder, take, name, bench.url, count, ttl)
            time.sleep(ttl / 6)  # A renewal is due each third of the ttl: three are inside.
            began, counts, start = ask(holder, usage), bench.counts(), time.monotonic()
            time.sleep(ttl)
            seconds, asked = time.monotonic() - start, bench.counts().since(counts)
            ended, held = ask(holder, usage), ask(holder, still_held)
        except (EOFError, ConnectionError):
            return {"": name, "leases": count, "lost": "all: its process died"}
    return {
        "": name,
        "leases": count,
        "lost": count - held,
        "threads": ended[0] - threads,
        "memory, MiB": (ended[1] - resident) / 2**20,
        # A request for hundreds of leases is read in pieces: scripts are counted, not reads.
        "round trips/s": asked.scripts / seconds,
        "CPU, %": (ended[2] - began[2]) / seconds * 100,
        "server's CPU, %": asked.seconds / seconds * 100,
    }


_held: list[Callable[[], int]] = []
"""in the holding process: how many are held still"""


def take(name: str, url: str, count: int, ttl: int) -> None:
    _held.append((_ours if name == OURS else _python_redis_lock)(url, count, ttl))


def still_held() -> int:
    return _held[0]()


def usage() -> tuple[int, int, float]:
    """Threads, bytes of the machine's memory, seconds of processor time so far."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/task")), resident, time.process_time()


def _ours(_url: str, count: int, ttl: int) -> Callable[[], int]:
    locks = import_module("django_tasklock").locks
    leases = [locks.acquire(f"renewed:{n}", ttl=ttl, renew=True) for n in range(count)]
    return lambda: sum(lease is not None and lease.held for lease in leases)


def _python_redis_lock(url: str, count: int, ttl: int) -> Callable[[], int]:
    new = import_module("redis_lock").Lock
    # Its threads ask at the same time, each by a connection of its own; the pool would have 100.
    client = redis.Redis.from_url(url, max_connections=count)
    threading.excepthook = lambda _: None  # Each thread that it loses would print a page.
    held = [new(client, f"renewed:{n}", expire=ttl, auto_renewal=True) for n in range(count)]
    for lock in held:
        with suppress(redis.RedisError):
            lock.acquire(blocking=False)

    def still() -> int:
        values: Any = client.mget([f"lock:renewed:{n}" for n in range(count)])
        ids = [lock.id for lock in held]  # Its threads end with its objects: those are kept here.
        return sum(value == mine.encode() for value, mine in zip(values, ids, strict=True))

    return still
