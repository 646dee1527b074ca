"""What one held lease takes, in Redis and in the process that holds it."""

from __future__ import annotations

import gc
import multiprocessing
import time
import tracemalloc
from pathlib import Path
from typing import Any

from django_tasklock import Lease, locks

from ..bench import Bench, set_up_site
from ..peers import OURS
from ..tables import Cell, Table
from .renewal import HOLDERS, PEER

__all__ = ["run"]

RENEWED = [(OURS, 0), (OURS, 1_000), (OURS, 10_000), (PEER, 1_000)]
"""whose leases, and how many"""
RENEWALS = 0.4
"""the share of the ttl after which all have been renewed once"""


def run(bench: Bench) -> list[Table]:
    rows = [
        _measure(bench, count, renew=renew)
        for renew in (False, True)
        for count in bench.pick([100, 1_000], [1_000, 10_000, 100_000])
    ]
    ttl = bench.pick(2, 30)
    held = bench.pick([(OURS, 0), (OURS, 50), (PEER, 50)], RENEWED)
    resident = [_resident(bench, name, count, ttl) for name, count in held]
    title = "Memory of a process that keeps leases renewed"
    note = (
        f"Leases of {ttl} s, {RENEWALS} of that after they were taken, in a new process with "
        "Django set up. The proportional size counts pages that several processes share as parts."
    )
    return [
        Table("memory", "Bytes a held lease takes", rows, "in all"),
        Table("resident", title, resident, "resident, MiB", [note]),
    ]


def _measure(bench: Bench, count: int, *, renew: bool) -> dict[str, Cell]:
    bench.redis.flushall()  # What is still being emptied would count against this.
    # The first makes what there is once: the store, the connection, the renewal thread.
    first = locks.acquire("memory:first", ttl=600, renew=renew)
    gc.collect()
    before = _settled(bench)
    tracemalloc.start()
    mine = tracemalloc.get_traced_memory()[0]
    leases: list[Lease | None] = [
        locks.acquire(f"memory:video:{n}", ttl=600, renew=renew) for n in range(count)
    ]
    gc.collect()
    here = (tracemalloc.get_traced_memory()[0] - mine) / count
    tracemalloc.stop()
    there = (_settled(bench) - before) / count
    for lease in [first, *leases]:
        assert lease is not None
        assert lease.release()
    left = bench.redis.dbsize()
    return {
        "leases": f"{count:,}{', renewed' if renew else ''}",
        "in Redis": there,
        "in the process": here,
        "in all": there + here,
        "keys left": left,
    }


def _settled(bench: Bench) -> int:
    """Memory in use; hash tables that grow are moved bit by bit, and counted twice meanwhile."""
    deadline, last = time.monotonic() + 5, -1
    while time.monotonic() < deadline:
        used = int(bench.redis.info("memory")["used_memory"])
        if used == last:
            break
        last = used
        time.sleep(0.2)
    return last


def _resident(bench: Bench, name: str, count: int, ttl: int) -> dict[str, Cell]:
    bench.redis.flushall()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(name, bench.url, count, ttl, theirs), daemon=True)
    child.start()
    theirs.close()  # So that we hear of its end.
    found: dict[str, int] | None = ours.recv()
    child.join(60)
    child.kill()
    row: dict[str, Cell] = {"column": f"{name}, {count:,}"}
    if found is None:
        bench.say(f"{name} is not installed, and left out")
        return row
    return row | {
        "resident, MiB": found["Rss"] / 1024,
        "proportional, MiB": found["Pss"] / 1024,
        "more than before, MiB": (found["Pss"] - found["before"]) / 1024,
        "threads": found["threads"],
    }


def _child(name: str, url: str, count: int, ttl: int, pipe: Any) -> None:
    set_up_site()
    # What there is once: the package, the store, its connection.
    locks.is_locked("memory:first")
    before = _rollup()["Pss"]
    try:
        still_held = HOLDERS[name](url, count, ttl)
    except ImportError:
        pipe.send(None)
        return
    time.sleep(ttl * RENEWALS)
    gc.collect()
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    pipe.send({**_rollup(), "before": before, "threads": threads})
    assert still_held() == count, f"{name} has lost leases"


def _rollup() -> dict[str, int]:
    """Rss and Pss of this process, in KiB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return {key: int(found[key]) for key in ("Rss", "Pss")}
