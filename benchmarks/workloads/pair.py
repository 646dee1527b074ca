"""Acquire and release a lock that nobody else wants: one thread, eight threads, four processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..bench import Bench
from ..contenders import FLOOR, OURS, PYTHON_REDIS_LOCK, REDIS_PY, contender
from ..crew import Member, crew, together
from ..rounds import Spread, interleaved
from ..tables import Cell, Table

__all__ = ["run"]

CREWS = {"1 thread": (1, 1), "8 threads": (1, 8), "4 processes": (4, 1)}


def run(bench: Bench) -> Table:
    pairs, rounds = bench.pick((16, 2), (240, 20))
    names = (FLOOR, OURS, REDIS_PY, PYTHON_REDIS_LOCK)
    rows: dict[str, dict[str, Cell]] = {name: {"": name} for name in names}
    with crew(4) as members:
        for who, (processes, threads) in CREWS.items():
            measure = partial(_measure, bench, members[:processes], threads, pairs)
            works = {name: partial(measure, name) for name in names}
            for work in works.values():  # Connections are made, scripts loaded.
                work()
            for name, (wall, client, server) in interleaved(works, FLOOR, rounds).items():
                if threads == processes:
                    rows[name]["1 thread, µs"] = Spread.of(wall.values, 1e6)
                    rows[name]["client's CPU"] = client.ratio
                    rows[name]["server's CPU"] = server.ratio
                rows[name][who] = wall.ratio
    note = (
        f"Ratios to the floor, except for the µs. {rounds} rounds of {pairs} pairs. Each thread "
        "has a lock of its own. CPU: of one thread's pairs."
    )
    return Table("Acquire and release", note, list(rows.values()))


def _measure(
    bench: Bench, members: Sequence[Member], threads: int, pairs: int, name: str
) -> tuple[float, float, float]:
    """Seconds a pair: by the clock, and of processor time in the clients and in Redis."""
    each = pairs // len(members) // threads
    before, start = bench.counts(), time.perf_counter()
    used = sum(together(members, do_pairs, name, bench.url, threads, each))
    wall, server = time.perf_counter() - start, bench.counts().since(before).seconds
    done = len(members) * threads * each
    return wall / done, used / done, server / done


def do_pairs(name: str, url: str, threads: int, pairs: int) -> float:
    """Seconds of processor time that this process used for them."""
    column = contender(name, url)

    def work(number: int) -> None:
        lock = f"pair:{os.getpid()}:{number}"
        for _ in range(pairs):
            held = column.acquire(lock)
            assert held is not None
            column.release(held)

    used = time.process_time()
    if threads == 1:
        work(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    return time.process_time() - used
