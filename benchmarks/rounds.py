"""Rounds that take turns, and what is made of their numbers.

A machine is never the same for long. So every contender is measured in many short rounds, in an
order that changes (A B C, B C A, ...), and each number is divided by the floor's that was measured
right before it. The floor is a contender too: how far its ratio spreads around 1 says how steady
the machine was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Paired", "Spread", "interleaved", "turned"]


@dataclass(frozen=True)
class Spread:
    """The median of some numbers, and the middle half of them: from ``low`` to ``high``."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], times: float = 1.0) -> Spread | None:
        """None when there is nothing to make a median of."""
        if not values:
            return None
        several = values if len(values) > 1 else [*values] * 2
        low, median, high = statistics.quantiles(several, n=4, method="inclusive")
        return cls(median * times, low * times, high * times)


class Paired(NamedTuple):
    """One quantity of one contender: as it was, and over the floor's beside it."""

    values: Sequence[float]
    ratio: Spread | None


def turned(names: Sequence[str], turn: int) -> list[str]:
    """The contenders in the order of a round: A B C, then B C A, and so on."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def interleaved(
    works: Mapping[str, Callable[[], Sequence[float]]], floor: str, rounds: int
) -> dict[str, list[Paired]]:
    """Measure each once a round, right after the floor.

    A work does its piece once and returns what a unit of it took, in one or more quantities; there
    is a `Paired` for each of these.
    """
    seen: dict[str, list[tuple[Sequence[float], Sequence[float]]]] = {name: [] for name in works}
    for turn in range(rounds):
        for name in turned(list(works), turn):
            ground = works[floor]()
            seen[name].append((ground, works[name]()))
    found = {}
    for name, pairs in seen.items():
        grounds, values = (list(zip(*side, strict=True)) for side in zip(*pairs, strict=True))
        found[name] = [
            Paired(own, Spread.of([a / b for a, b in zip(own, ground, strict=True) if b]))
            for own, ground in zip(values, grounds, strict=True)
        ]
    return found
