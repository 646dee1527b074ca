"""A lock that many processes wait for, one waiter each, which end after their turn: web workers.

The first holder ends as well, while all others know it as the holder.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from ..bench import Bench, set_up_site
from ..counting import Counter
from ..peers import OURS, columns, make
from ..rounds import Spread, turned
from ..tables import Cell, Table
from ..turns import gaps, jumps, take_turn

__all__ = ["run"]

BASE = "python-redis-lock"
ASKED_SECONDS = 1.0
"""in which all processes that are about to ask have asked"""


class Seen(NamedTuple):
    """What was seen of one column in one round."""

    gaps: Sequence[float]
    """from a release to the next holder's turn, in ms, sorted"""
    wall: float
    """from the first release until the last process has released, in s"""
    commands: float
    """for each turn"""
    trips: float
    jumps: int


def run(bench: Bench) -> list[Table]:
    processes, rounds = bench.pick((4, 1), (50, 9))
    here = columns(bench.url, bench.say, (OURS, BASE))
    seen: dict[str, list[Seen]] = {name: [] for name in here}
    for number in range(rounds):
        for name in turned(list(here), number):
            seen[name].append(_measure(bench, name, processes))
    rows = [{"column": name, **_row(each, seen.get(BASE))} for name, each in seen.items()]
    title = f"Hand-off to {processes} processes that wait once, sections of 1 ms"
    notes = [f"{rounds} rounds; a ratio is that of two medians, or two times, of one round"]
    return [Table("handoff-once", title, rows, "median, ms", notes)]


def _measure(bench: Bench, name: str, processes: int) -> Seen:
    lock = "handoff-once"
    context = multiprocessing.get_context("fork")
    ready, turns = context.Semaphore(0), context.Queue()
    go, released = context.Semaphore(0), context.Queue()
    holder = context.Process(
        target=_holder, args=(name, bench.url, lock, ready, go, released), daemon=True
    )
    holder.start()
    ready.acquire()
    children = [
        context.Process(target=_child, args=(name, bench.url, lock, ready, turns), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    for _ in children:
        ready.acquire()
    time.sleep(ASKED_SECONDS)
    counter = Counter(bench.redis)
    go.release()
    began = released.get(timeout=60)
    all_turns = sorted((turns.get(timeout=60) for _ in children), key=lambda turn: turn.held)
    counts = counter.counts()
    for child in (holder, *children):
        child.join(30)
    return Seen(
        gaps(all_turns), all_turns[-1].over - began, counts.commands / processes,
        counts.trips / processes, jumps(all_turns),
    )  # fmt: skip


def _row(rounds: Sequence[Seen], base: Sequence[Seen] | None) -> dict[str, Cell]:
    pairs = list(zip(rounds, base or (), strict=False))
    return {
        "median, ms": Spread.of([gap for seen in rounds for gap in seen.gaps]),
        f"of {BASE}'s": _ratios([median(a.gaps) / median(b.gaps) for a, b in pairs]),
        "in all, ms": Spread.of([seen.wall * 1000 for seen in rounds]),
        f"in all, of {BASE}'s": _ratios([a.wall / b.wall for a, b in pairs]),
        "out of order": sum(seen.jumps for seen in rounds),
        "round trips a turn": median(seen.trips for seen in rounds),
        "commands a turn": median(seen.commands for seen in rounds),
    }


def _ratios(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None


def _holder(name: str, url: str, lock: str, ready: Any, go: Any, released: Any) -> None:
    set_up_site()
    column = make(name, url)
    held = column.acquire(lock)
    ready.release()
    go.acquire()
    released.put(time.monotonic())
    column.release(held)
    released.close()
    released.join_thread()


def _child(name: str, url: str, lock: str, ready: Any, turns: Any) -> None:
    set_up_site()
    column = make(name, url)
    ready.release()
    turn = None
    while turn is None:
        turn = take_turn(column, lock)
    turns.put(turn)
    turns.close()
    turns.join_thread()
