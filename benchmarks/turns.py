"""Turns at one lock: who held it when, and what that says of the hand-overs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

__all__ = ["SECTION_SECONDS", "Turn", "gaps", "jumps", "take_turn", "take_turns"]

SECTION_SECONDS = 0.001
"""seconds for which each holder holds it"""
CLEARLY_EARLIER_SECONDS = 0.002
"""seconds by which another must have asked earlier for a turn to count as out of order"""


class Turn(NamedTuple):
    """One holder's turn, by a clock that all processes share."""

    asked: float
    held: float
    over: float


def take_turns(column: Any, lock: str, over: Callable[[], bool]) -> list[Turn]:
    """Wait for the lock, hold it, and release it, until ``over()``."""
    mine: list[Turn] = []
    while not over():
        turn = take_turn(column, lock)
        if turn is not None:
            mine.append(turn)
    return mine


def take_turn(column: Any, lock: str) -> Turn | None:
    """Wait for the lock, hold it, and release it; None if the wait has ended without it."""
    asked = time.monotonic()
    held = column.wait(lock)
    if held is None:
        return None
    since = time.monotonic()
    time.sleep(SECTION_SECONDS)
    over = time.monotonic()
    column.release(held)
    return Turn(asked, since, over)


def gaps(turns: Sequence[Turn]) -> list[float]:
    """From each release to the next holder's turn, in ms, sorted. Raises if two turns overlap."""
    overlaps = sum(after.held < before.over for before, after in pairwise(turns))
    assert not overlaps, f"two held one lock, {overlaps} times"
    return sorted(
        (after.held - before.over) * 1000
        for before, after in pairwise(turns)
        # Only what was waited for is a hand-over.
        if after.asked < before.over
    )


def jumps(turns: Sequence[Turn]) -> int:
    """How many turns came before that of somebody who had clearly asked earlier."""
    found, earliest = 0, float("inf")
    for turn in reversed(turns):
        # Somebody who had asked before got it only after this one.
        found += turn.asked > earliest + CLEARLY_EARLIER_SECONDS
        earliest = min(earliest, turn.asked)
    return found
