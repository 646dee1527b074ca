"""Acquire and release a lock that nobody else wants: one thread, eight threads, four processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ..bench import Bench, set_up_site
from ..peers import FLOOR, Column, columns
from ..raw import RAW, RawSocket
from ..rounds import interleaved
from ..tables import Cell, Table

__all__ = ["run"]


class Crew(Protocol):
    """Some threads or processes that do the same work at the same time."""

    def work(self, column: str, pairs: int) -> float:
        """Each does ``pairs``; the seconds that one pair took, as the wall clock has it."""


def run(bench: Bench) -> list[Table]:
    pairs, rounds = bench.pick((3, 2), (200, 40))
    found = columns(bench.url, bench.say)
    with alone(bench, found) as crew:
        tables = [_table(crew, "1 thread", "one", [RAW, *found], pairs * 2, rounds)]
    with threads(found, 8) as crew:
        tables.append(_table(crew, "8 threads", "threads", list(found), pairs // 2, rounds))
    with processes(bench, 4) as crew:
        tables.append(_table(crew, "4 processes", "processes", list(found), pairs, rounds))
    return tables


def _table(crew: Crew, who: str, slug: str, names: list[str], pairs: int, rounds: int) -> Table:
    pairs = max(1, pairs)
    for name in names:  # Connections are made, scripts loaded.
        crew.work(name, 2)
    floor = partial(crew.work, FLOOR, pairs)
    measured = interleaved(floor, {n: partial(crew.work, n, pairs) for n in names}, rounds)
    rows: list[dict[str, Cell]] = [
        {"column": n, "us a pair": m.seconds.times(1_000_000), "over the floor": m.ratio}
        for n, m in measured.items()
    ]
    rows.sort(key=lambda row: getattr(row["over the floor"], "median", 0.0))
    title = f"Acquire + release, {who}"
    note = f"{rounds} rounds of {pairs} pairs"
    return Table(f"acquire-release-{slug}", title, rows, "over the floor", [note])


@contextmanager
def alone(bench: Bench, found: dict[str, Column]) -> Iterator[Crew]:
    """This thread."""
    with_raw = {**found, RAW: RawSocket(bench.url)}

    class Alone:
        def work(self, column: str, pairs: int) -> float:
            start = time.perf_counter()
            _pairs(with_raw[column], "bench:0", pairs)
            return (time.perf_counter() - start) / pairs

    yield Alone()


@contextmanager
def threads(found: dict[str, Column], size: int) -> Iterator[Crew]:
    """Threads that share each column's adapter, and so its pool of connections."""
    with ThreadPoolExecutor(size) as pool:

        class Threads:
            def work(self, column: str, pairs: int) -> float:
                start = time.perf_counter()
                jobs = [
                    pool.submit(_pairs, found[column], f"bench:{n}", pairs) for n in range(size)
                ]
                for job in jobs:
                    job.result()
                return (time.perf_counter() - start) / pairs / size

        yield Threads()


@contextmanager
def processes(bench: Bench, size: int) -> Iterator[Crew]:
    """Processes, each with adapters of its own."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    children = []
    for number in range(size):
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(bench.url, number, theirs), daemon=True)
        child.start()
        pipes.append(ours)
        children.append(child)

    class Processes:
        def work(self, column: str, pairs: int) -> float:
            start = time.perf_counter()
            for pipe in pipes:
                pipe.send((column, pairs))
            for pipe in pipes:
                pipe.recv()
            return (time.perf_counter() - start) / pairs / size

    try:
        for pipe in pipes:
            pipe.recv()
        yield Processes()
    finally:
        for pipe in pipes:
            pipe.send(None)
        for child in children:
            child.join(10)


def _child(url: str, number: int, pipe: Any) -> None:
    set_up_site()
    found = columns(url, lambda _: None)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        column, pairs = order
        _pairs(found[column], f"bench:{number}", pairs)
        pipe.send("done")


def _pairs(column: Column, name: str, pairs: int) -> None:
    for _ in range(pairs):
        held = column.acquire(name)
        assert held is not None
        column.release(held)
