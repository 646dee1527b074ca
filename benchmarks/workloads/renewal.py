"""Many leases kept alive by one process: threads, memory, round trips, processor time, losses."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import redis

from django_tasklock import locks

from ..bench import Bench, set_up_site
from ..counting import Counter
from ..peers import OURS
from ..tables import Cell, Table

__all__ = ["run"]

PEER = "python-redis-lock"


def run(bench: Bench) -> list[Table]:
    ttl, thirds = bench.pick((2, 2), (30, 4))
    rows = []
    for count in bench.pick([50, 700], [1_000, 10_000, 100_000]):
        rows.append(_measure(bench, OURS, count, ttl, thirds))
        if count <= bench.pick(50, 10_000):
            rows.append(_measure(bench, PEER, count, ttl, thirds))
    title = f"Leases of {ttl} s renewed in one process, over {thirds} thirds of a lease"
    notes = ["Threads and resident memory are what the process has more than before"]
    return [Table("renewal", title, rows, "CPU, %", notes)]


def _measure(bench: Bench, name: str, count: int, ttl: int, thirds: int) -> dict[str, Cell]:
    """Hold them in a process of their own, and look from here."""
    bench.redis.flushall()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(name, bench.url, count, ttl, theirs), daemon=True)
    child.start()
    theirs.close()  # So that we hear of its end.
    try:
        taken = ours.recv()
        if taken is None:
            bench.say(f"{name} is not installed, and left out")
            return {"column": f"{name}, {count:,}"}
        time.sleep(ttl)  # What was taken first has been renewed by now, if it ever is.
        counter = Counter(bench.redis)
        ours.send("begin")
        start = time.monotonic()
        time.sleep(ttl / 3 * thirds)
        seconds, counts = time.monotonic() - start, counter.counts()
        ours.send("end")
        used, threads, resident, lost = ours.recv()
    except (EOFError, ConnectionError):
        child.join(60)
        bench.say(f"{name} with {count:,} leases: its process died ({child.exitcode})")
        return {"column": f"{name}, {count:,}", "lost": "all: its process died"}
    finally:
        child.join(60)
        if child.is_alive():
            child.kill()
    # A request for hundreds of leases is read in pieces: scripts are counted, not reads.
    trips = counts.by_command.get("evalsha", 0) / seconds
    return {
        "column": f"{name}, {count:,}",
        "threads": threads,
        "resident memory, MiB": resident / 2**20,
        "lost": lost,
        "round trips/s": trips,
        "round trips a third": trips * ttl / 3,
        "CPU, %": used / seconds * 100,
        "server's CPU, %": counts.microseconds / 10_000 / seconds,
    }


def _child(name: str, url: str, count: int, ttl: int, pipe: Any) -> None:
    set_up_site()
    before, resident = _threads(), _resident()
    try:
        still_held = HOLDERS[name](url, count, ttl)
    except ImportError:
        pipe.send(None)
        return
    pipe.send("taken")
    pipe.recv()
    start = time.process_time()
    pipe.recv()
    used, threads = time.process_time() - start, _threads() - before
    pipe.send((used, threads, _resident() - resident, count - still_held()))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _resident() -> int:
    """The memory that the process has of the machine, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _ours(_url: str, count: int, ttl: int) -> Callable[[], int]:
    leases = [locks.acquire(f"renewed:{n}", ttl=ttl, renew=True) for n in range(count)]
    return lambda: sum(lease is not None and lease.held for lease in leases)


def _python_redis_lock(url: str, count: int, ttl: int) -> Callable[[], int]:
    new = import_module("redis_lock").Lock
    # Each thread that it loses would print a page.
    threading.excepthook = lambda _: None
    client = redis.Redis.from_url(url)
    held = [new(client, f"renewed:{n}", expire=ttl, auto_renewal=True) for n in range(count)]
    for lock in held:
        lock.acquire(blocking=False)

    def still_held() -> int:
        # Its threads end with its objects: those are kept until here.
        values: Any = client.mget([f"lock:renewed:{n}" for n in range(count)])
        return sum(
            value is not None and value.decode() == lock.id
            for value, lock in zip(values, held, strict=True)
        )

    return still_held


HOLDERS: dict[str, Callable[[str, int, int], Callable[[], int]]] = {
    OURS: _ours,
    PEER: _python_redis_lock,
}
