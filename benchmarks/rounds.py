"""Rounds that take turns, and what is made of their numbers.

A machine is never the same for long. So every column is measured in many short rounds, in an
order that changes (A B C, B C A, ...), and each number is divided by the floor's that was
measured right before it. What is printed is the median, and how far the middle half spreads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Paired", "Spread", "interleaved", "paired", "turned"]


@dataclass(frozen=True)
class Spread:
    """The median of some numbers, and the middle half of them: from ``low`` to ``high``."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises `ValueError` when there is nothing to make a median of."""
        if not values:
            raise ValueError("no numbers")
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    def times(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.count)


@dataclass(frozen=True)
class Paired:
    """One column: what a unit of work took, in seconds, and that over the floor beside it."""

    seconds: Spread
    ratio: Spread


def turned(names: Sequence[str], turn: int) -> list[str]:
    """The columns in the order of a round: A B C, then B C A, and so on."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def interleaved(
    floor: Callable[[], float], columns: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, Paired]:
    """Measure every column once a round, each after the floor.

    ``floor`` and the columns do their work once and return what a unit of it took, in seconds.
    """
    return paired({name: (floor, work) for name, work in columns.items()}, rounds)


def paired(
    columns: Mapping[str, tuple[Callable[[], float], Callable[[], float]]], rounds: int
) -> dict[str, Paired]:
    """`interleaved`, for columns that have different floors: each a floor and its work."""
    names = list(columns)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in turned(names, turn):
            floor, work = columns[name]
            ground = floor()
            took = work()
            seconds[name].append(took)
            ratios[name].append(took / ground)
    return {name: Paired(Spread.of(seconds[name]), Spread.of(ratios[name])) for name in names}
