"""A lock that many wait for: how soon the next holder has it, in which order, at what cost."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from ..bench import Bench, set_up_site
from ..counting import Counter, Counts
from ..peers import OURS, columns, make
from ..rounds import Spread, turned
from ..tables import Cell, Table
from ..turns import Turn, gaps, jumps, take_turns

__all__ = ["run"]

BASE = "python-redis-lock"
COLUMNS = (OURS, BASE, "redis-py Lock", "django-redis lock")
WINDOW_SECONDS = 0.2
"""seconds of a look at how much is asked while it is held: of some looks the median counts, for on
a busy machine somebody may have begun to ask only then"""


class Watched(NamedTuple):
    """What was seen of one column in one round."""

    turns: Sequence[Turn]
    gaps: Sequence[float]
    """from a release to the next holder's turn, in ms, sorted"""
    seconds: float
    idle: float
    """commands a second while the lock was held"""
    busy: Counts


def run(bench: Bench) -> list[Table]:
    tables = []
    for waiters, processes in bench.pick([(4, 2)], [(8, 8), (50, 10), (500, 10)]):
        here = columns(bench.url, bench.say, COLUMNS if waiters <= 50 else COLUMNS[:1])
        watched: dict[str, list[Watched]] = {name: [] for name in here}
        rounds = bench.pick(1, 5)
        for number in range(rounds):
            # A B C, B C A, ...: what the machine does meanwhile comes to each of them.
            for name in turned(list(here), number):
                watched[name].append(_measure(bench, name, here[name], waiters, processes))
        base = watched.get(BASE)
        rows = [{"column": name, **_row(seen, base)} for name, seen in watched.items()]
        title = f"Hand-off, {waiters} waiters in {processes} processes, sections of 1 ms"
        notes = [f"{rounds} rounds; a ratio is that of two medians of one round"]
        tables.append(Table(f"handoff-{waiters}", title, rows, "median, ms", notes))
    return tables


def _measure(bench: Bench, name: str, column: Any, waiters: int, processes: int) -> Watched:
    lock = f"handoff:{waiters}"
    context = multiprocessing.get_context("spawn")
    stop, turns = context.Event(), context.Queue()
    ready = context.Semaphore(0)
    held = column.acquire(lock)
    children = [
        context.Process(
            target=_child,
            args=(name, bench.url, lock, waiters // processes, ready, stop, turns),
            daemon=True,
        )
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    for _ in range(waiters // processes * processes):
        ready.acquire()
    # All are about to ask. What follows counts when they have, for they are many.
    time.sleep(bench.pick(0.3, 1.5))
    counter = Counter(bench.redis)
    idle = median(_commands(counter, WINDOW_SECONDS) for _ in range(5))
    column.release(held)
    start = time.monotonic()
    time.sleep(bench.pick(0.5, 3.0))
    end, busy = time.monotonic(), counter.counts()
    stop.set()
    all_turns = sorted(turn for _ in children for turn in turns.get(timeout=60))
    for child in children:
        child.join(30)
    all_turns.sort(key=lambda turn: turn.held)
    # A look at Redis takes a moment: the window is cut at the turns inside it.
    inside = [turn for turn in all_turns if start <= turn.held <= end]
    return Watched(inside, gaps(inside), end - start, idle, busy)


def _commands(counter: Counter, seconds: float) -> float:
    """Commands a second, since the counter was last asked, which is now."""
    time.sleep(seconds)
    return counter.counts().commands / seconds


def _row(rounds: Sequence[Watched], base: Sequence[Watched] | None) -> dict[str, Cell]:
    every = sorted(gap for seen in rounds for gap in seen.gaps)
    turns = [turn for seen in rounds for turn in seen.turns]
    ratios = [
        median(ours.gaps) / median(theirs.gaps)
        for ours, theirs in zip(rounds, base or (), strict=False)
        if ours.gaps and theirs.gaps
    ]
    many = max(1, len(turns))
    return {
        "hand-offs": len(every),
        "a second": len(turns) / sum(seen.seconds for seen in rounds),
        "median, ms": Spread.of(every) if every else None,
        f"of {BASE}'s": Spread.of(ratios) if ratios else None,
        "p99, ms": every[int(len(every) * 0.99)] if every else None,
        "worst, ms": every[-1] if every else None,
        "longest wait, ms": max((t.held - t.asked) * 1000 for t in turns) if turns else None,
        "out of order": sum(jumps(seen.turns) for seen in rounds),
        "round trips a turn": sum(seen.busy.trips for seen in rounds) / many,
        "commands a turn": sum(seen.busy.commands for seen in rounds) / many,
        "commands/s while held": median(seen.idle for seen in rounds),
    }


def _child(name: str, url: str, lock: str, size: int, ready: Any, stop: Any, turns: Any) -> None:
    set_up_site()
    column = make(name, url)
    mine: list[Turn] = []

    def work() -> None:
        ready.release()
        mine.extend(take_turns(column, lock, stop.is_set))

    crowd = [threading.Thread(target=work) for _ in range(size)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    turns.put(mine)
    turns.close()
    turns.join_thread()
