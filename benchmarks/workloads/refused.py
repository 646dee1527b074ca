"""A refused call with the history of locks beside one without: all that the process uses for it.

A thread writes the history in the background. So what a call costs is the processor time of its own
thread, and its part of what the other threads used in the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from django_tasklock import Lease, locks

from ..bench import Bench
from ..rounds import Spread, turned
from ..tables import Cell, Table

__all__ = ["run"]

RECORDED, UNRECORDED = "recorded", "unrecorded"
"""aliases of two stores on the same locks"""
CALLS = 100
"""of one piece of work"""
PAUSE_SECONDS = 2.0
"""longer than events are collected"""


def run(bench: Bench) -> list[Table]:
    crowds = bench.pick([1, 100], [1, 100, 5_000])
    held = [locks.acquire(f"refused:{n}", ttl=3600) for n in range(max(crowds))]
    rows = [_row(bench, held[:count]) for count in crowds]
    for lease in held:
        assert lease is not None
        lease.release()
    title = "Refused calls with a history, over the same without"
    notes = ["in the background: us of the writer's thread for each call"]
    return [Table("refused", title, rows, "processor time", notes)]


def _row(bench: Bench, held: Sequence[Lease | None]) -> dict[str, Cell]:
    names = [lease.name for lease in held if lease is not None]
    aliases = (RECORDED, UNRECORDED)
    for alias in aliases:
        _piece(alias, names, 0)
    bench.redis.delete(locks.using(RECORDED).store.keyspace.history)  # type: ignore[attr-defined]
    pieces = bench.pick(2, 400)
    used: dict[str, list[float]] = {alias: [] for alias in aliases}
    took: list[float] = []
    process, thread = time.process_time(), time.thread_time()
    for turn in range(pieces):
        told = {alias: _piece(alias, names, turn) for alias in turned(aliases, turn)}
        for alias in aliases:
            used[alias].append(told[alias][0])
        took.append(told[RECORDED][1] / told[UNRECORDED][1])
    time.sleep(PAUSE_SECONDS)
    process, thread = time.process_time() - process, time.thread_time() - thread
    behind = (process - thread) / (pieces * CALLS)
    pairs = zip(used[RECORDED], used[UNRECORDED], strict=True)
    return {
        "locks": f"{len(names):,}",
        "us without": Spread.of(used[UNRECORDED]).times(1e6),
        "us in the background": behind * 1e6,
        "processor time": Spread.of([(ours + behind) / theirs for ours, theirs in pairs]),
        "time": Spread.of(took),
        "bytes of Redis an event": _bytes_of_an_event(bench),
    }


def _piece(alias: str, names: Sequence[str], turn: int) -> tuple[float, float]:
    """Return what a call took: seconds of this thread's processor time, and of time."""
    acquire = locks.using(alias).acquire
    used, began = time.thread_time(), time.perf_counter()
    for count in range(turn * CALLS, (turn + 1) * CALLS):
        assert acquire(names[count % len(names)]) is None
    return (time.thread_time() - used) / CALLS, (time.perf_counter() - began) / CALLS


def _bytes_of_an_event(bench: Bench) -> float | None:
    key = locks.using(RECORDED).store.keyspace.history  # type: ignore[attr-defined]
    count = int(bench.redis.xlen(key))
    return bench.redis.memory_usage(key, samples=0) / count if count else None
