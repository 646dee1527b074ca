"""A lock that many wait for: how soon the next holder has it, in which order, at what cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..bench import Bench, Counts
from ..contenders import OURS, PYTHON_REDIS_LOCK, REDIS_PY, contender
from ..crew import Member, crew, together
from ..rounds import Spread, turned
from ..tables import Cell, Table

__all__ = ["run"]

WAITERS = {8: 8, 50: 10}
"""how many wait, and in how many processes"""
SECTION_SECONDS = 0.001
CLEARLY_EARLIER_SECONDS = 0.002
LOOK_SECONDS = 0.5


class Turn(NamedTuple):
    """One holder's turn, by a clock that all processes share."""

    asked: float
    held: float
    over: float


class Watched(NamedTuple):
    """What was seen of one contender in one round."""

    turns: Sequence[Turn]
    gaps: Sequence[float]
    """from a release to the next holder's turn, in ms"""
    idle: float
    """commands a second while the lock was held"""
    busy: Counts


def run(bench: Bench) -> Table:
    rounds = bench.pick(1, 4)
    names = (OURS, PYTHON_REDIS_LOCK, REDIS_PY)
    rows = []
    with crew(max(WAITERS.values())) as members:
        for waiters, processes in WAITERS.items():
            seen: dict[str, list[Watched]] = {name: [] for name in names}
            for number in range(rounds):
                for name in turned(names, number):
                    few = members[:processes]
                    seen[name].append(_measure(bench, few, name, waiters // processes))
            base = seen[PYTHON_REDIS_LOCK]
            rows += [{"": f"{name}, {waiters} waiters", **_row(seen[name], base)} for name in names]
    note = (
        f"{rounds} rounds, with 8 waiters in 8 processes and 50 in 10. Each holds the lock for "
        "1 ms and asks again. Out of order: somebody else had asked 2 ms earlier. The median is "
        "that of the turns that were handed over; in the others mostly the process that released "
        "took the lock again."
    )
    return Table("Hand-over to a waiter", note, rows)


def _measure(bench: Bench, members: Sequence[Member], name: str, threads: int) -> Watched:
    lock, column = f"handoff:{len(members)}", contender(name, bench.url)
    together(members, take_turns, name, bench.url, "warm", 1, time.monotonic())
    settle, busy_seconds = bench.pick((0.5, 0.5), (0.7, 2.0))
    held = column.acquire(lock)
    end = time.monotonic() + settle + LOOK_SECONDS + busy_seconds
    for member in members:
        member.send((take_turns, (name, bench.url, lock, threads, end)))
    time.sleep(settle)  # All have asked by then.
    before = bench.counts()
    time.sleep(LOOK_SECONDS)
    busy = bench.counts()
    column.release(held)
    time.sleep(max(0.0, end - time.monotonic()))
    counts, over = bench.counts().since(busy), time.monotonic()
    turns = sorted((turn for member in members for turn in member.recv()), key=lambda t: t.held)
    overlaps = sum(after.held < before.over for before, after in pairwise(turns))
    assert not overlaps, f"{name}: two held one lock, {overlaps} times"
    turns = [turn for turn in turns if turn.held <= over]
    gaps = [
        (after.held - before.over) * 1000
        for before, after in pairwise(turns)
        if after.asked < before.over  # Only what was waited for is a hand-over.
    ]
    return Watched(turns, gaps, busy.since(before).commands / LOOK_SECONDS, counts)


def take_turns(name: str, url: str, lock: str, threads: int, end: float) -> list[Turn]:
    """Wait for the lock, hold it, and release it, again and again; in so many threads."""
    column = contender(name, url)

    def work(_number: int) -> list[Turn]:
        mine = []
        while (asked := time.monotonic()) < end:
            held = column.acquire(lock, wait=True)
            since = time.monotonic()
            time.sleep(SECTION_SECONDS)
            mine.append(Turn(asked, since, time.monotonic()))
            column.release(held)
        return mine

    with ThreadPoolExecutor(threads) as pool:
        return [turn for turns in pool.map(work, range(threads)) for turn in turns]


def _jumps(turns: Sequence[Turn]) -> int:
    """How many turns came before that of somebody who had clearly asked earlier."""
    found, earliest = 0, float("inf")
    for turn in reversed(turns):
        found += turn.asked > earliest + CLEARLY_EARLIER_SECONDS
        earliest = min(earliest, turn.asked)
    return found


def _row(rounds: Sequence[Watched], base: Sequence[Watched]) -> dict[str, Cell]:
    gaps = sorted(gap for seen in rounds for gap in seen.gaps)
    turns = sum(len(seen.turns) for seen in rounds)
    ratios = [
        median(ours.gaps) / median(theirs.gaps)
        for ours, theirs in zip(rounds, base, strict=True)
        if ours.gaps and theirs.gaps
    ]
    return {
        "handed over, %": 100 * len(gaps) / turns,
        "median, ms": Spread.of(gaps),
        f"of {PYTHON_REDIS_LOCK}'s": Spread.of(ratios),
        "p99, ms": gaps[int(len(gaps) * 0.99)] if gaps else None,
        "out of order, %": 100 * sum(_jumps(seen.turns) for seen in rounds) / turns,
        "commands a turn": sum(seen.busy.commands for seen in rounds) / turns,
        "commands/s while held": median(seen.idle for seen in rounds),
    }
