"""A lock that many wait for: how soon the next holder has it, in which order, at what cost."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from ..bench import Bench, set_up_site
from ..counting import Counter, Counts
from ..peers import OURS, make
from ..rounds import Spread, turned
from ..tables import Cell, Table

__all__ = ["run"]

BASE = "python-redis-lock"
COLUMNS = (OURS, BASE, "redis-py Lock", "django-redis lock")
SECTION = 0.001
"""seconds for which each holder holds it"""
WINDOW = 0.2
"""seconds of a look at how much is asked while it is held: of some looks the median counts, for on
a busy machine somebody may have begun to ask only then"""
CLEARLY = 0.002
"""seconds by which another must have asked earlier for a turn to count as a jump of the line"""


class Turn(NamedTuple):
    """One holder's turn, by a clock that all processes share."""

    asked: float
    held: float
    over: float


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
        columns = {}
        for name in COLUMNS if waiters <= 50 else COLUMNS[:1]:
            try:
                columns[name] = make(name, bench.url)
            except ImportError:
                bench.say(f"{name} is not installed, and left out")
        watched: dict[str, list[Watched]] = {name: [] for name in columns}
        rounds = bench.pick(1, 5)
        for number in range(rounds):
            # A B C, B C A, ...: what the machine does meanwhile comes to each of them.
            for name in turned(list(columns), number):
                watched[name].append(_measure(bench, name, columns[name], waiters, processes))
        base = watched.get(BASE)
        rows = [{"column": name, **_row(seen, base)} for name, seen in watched.items()]
        title = f"Hand-off, {waiters} waiters in {processes} processes, sections of 1 ms"
        notes = [f"{rounds} rounds; a ratio is that of two medians of one round"]
        tables.append(Table(f"handoff-{waiters}", title, rows, "median, ms", None, notes))
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
    idle = median(_commands(counter, WINDOW) for _ in range(5))
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
    return Watched(inside, _gaps(inside), end - start, idle, busy)


def _commands(counter: Counter, seconds: float) -> float:
    """Commands a second, since the counter was last asked, which is now."""
    time.sleep(seconds)
    return counter.counts().commands / seconds


def _gaps(turns: Sequence[Turn]) -> list[float]:
    overlaps = sum(after.held < before.over for before, after in pairwise(turns))
    assert not overlaps, f"two held one lock, {overlaps} times"
    return sorted(
        (after.held - before.over) * 1000
        for before, after in pairwise(turns)
        # Only what was waited for is a hand-over.
        if after.asked < before.over
    )


def _jumps(turns: Sequence[Turn]) -> int:
    jumps, earliest = 0, float("inf")
    for turn in reversed(turns):
        # Somebody who had asked before got it only after this one.
        jumps += turn.asked > earliest + CLEARLY
        earliest = min(earliest, turn.asked)
    return jumps


def _row(rounds: Sequence[Watched], base: Sequence[Watched] | None) -> dict[str, Cell]:
    gaps = sorted(gap for seen in rounds for gap in seen.gaps)
    turns = [turn for seen in rounds for turn in seen.turns]
    ratios = [
        median(ours.gaps) / median(theirs.gaps)
        for ours, theirs in zip(rounds, base or (), strict=False)
        if ours.gaps and theirs.gaps
    ]
    many = max(1, len(turns))
    return {
        "hand-offs": len(gaps),
        "a second": len(turns) / sum(seen.seconds for seen in rounds),
        "median, ms": Spread.of(gaps) if gaps else None,
        f"of {BASE}'s": Spread.of(ratios) if ratios else None,
        "p99, ms": gaps[int(len(gaps) * 0.99)] if gaps else None,
        "worst, ms": gaps[-1] if gaps else None,
        "longest wait, ms": max((t.held - t.asked) * 1000 for t in turns) if turns else None,
        "jumped the line": sum(_jumps(seen.turns) for seen in rounds),
        "round trips a turn": sum(seen.busy.trips for seen in rounds) / many,
        "commands a turn": sum(seen.busy.commands for seen in rounds) / many,
        "commands/s while held": median(seen.idle for seen in rounds),
    }


def _child(name: str, url: str, lock: str, size: int, ready: Any, stop: Any, turns: Any) -> None:
    set_up_site()
    column = make(name, url)
    mine: list[Turn] = []

    def take_turns() -> None:
        ready.release()
        while not stop.is_set():
            asked = time.monotonic()
            held = column.wait(lock)
            if held is None:
                continue
            since = time.monotonic()
            time.sleep(SECTION)
            over = time.monotonic()
            column.release(held)
            mine.append(Turn(asked, since, over))

    crowd = [threading.Thread(target=take_turns) for _ in range(size)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    turns.put(mine)
    turns.close()
    turns.join_thread()
