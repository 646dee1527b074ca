"""What the doctor finds, grouped and counted: a page of it, in bounded memory and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .doctor import Look, Problem

__all__ = ["Group", "Part", "part_of", "survey"]


@dataclass
class Group:
    """Findings of one kind that are all serious, or all notes.

    ``first`` are those to be shown, ``count`` is how many there are, and ``more`` whether there
    may be others, which were not counted.
    """

    kind: str
    serious: bool
    first: list[Problem] = field(default_factory=list)
    count: int = 0
    more: bool = False


class Part(NamedTuple):
    """Some findings of one kind, whether there are others behind them, and what else was found in
    their place: stores that did not answer, rows and tasks of which nothing is known."""

    found: list[Problem]
    more: bool
    silent: list[Problem]


def survey(looks: Iterable[Look], shown: int) -> list[Group]:
    """Return the findings of all looks, in groups, the serious ones first.

    Each group has the first ``shown`` findings. A look that has found as many as it counts ends
    there.
    """
    groups: dict[tuple[str, bool], Group] = {}
    for look in looks:
        of_look: dict[tuple[str, bool], Group] = {}
        for problem in islice(look.found, look.most):
            key = problem.kind, problem.serious
            group = of_look[key] = groups.setdefault(key, Group(*key))
            group.count += 1
            if len(group.first) < shown:
                group.first.append(problem)
        if next(look.found, None) is not None:
            for group in of_look.values():
                group.more = True
    return sorted(groups.values(), key=lambda group: not group.serious)


def part_of(looks: Iterable[Look], kind: str, start: int, most: int) -> Part:
    """Return at most ``most`` findings of one kind, after the first ``start``.

    Only the looks that may find such are read, and of these all that comes before.
    """
    silent: list[Problem] = []

    def of_kind() -> Iterator[Problem]:
        for look in looks:
            if kind in look.kinds:
                for problem in look.found:
                    if problem.kind == kind:
                        yield problem
                    elif problem.error is not None or problem.kind == "unknown":
                        silent.append(problem)

    found = list(islice(of_kind(), start, start + most + 1))
    return Part(found[:most], len(found) > most, silent)
