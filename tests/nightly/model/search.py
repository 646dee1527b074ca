"""Visits every reachable state of a model, the nearest first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Explored", "Move", "Violation", "explore"]

S = TypeVar("S", bound=Hashable)


class Move(NamedTuple):
    """One step of a model: what happens, in words, and the state after it."""

    what: tuple[str, ...]
    after: Any
    kind: str = "step"
    """"step": what a process does of itself; other kinds may be left out of a search"""


class Violation(AssertionError):
    """A property does not hold. The text names it, and has the shortest way there in words."""

    def __init__(self, broken: str, trace: Iterable[str], state: object) -> None:
        self.broken = broken
        self.trace = list(trace)
        steps = "\n".join(f"{at:3}. {what}" for at, what in enumerate(self.trace, 1))
        super().__init__(f"{broken}\n{steps}\n     now: {state}")


@dataclass
class Explored(Generic[S]):
    """All states that can be reached, and how."""

    states: list[S]
    parents: list[tuple[int, tuple[str, ...]]]
    """for each state, from which one it was reached first, and by what"""
    edges: list[tuple[int, int, str]]
    """from which state to which, and the kind of the move"""

    def trace(self, at: int) -> list[str]:
        """The shortest way to a state, in words."""
        words = []
        while at:
            at, what = self.parents[at]
            words.append(" ".join(what))
        return words[::-1]

    def violation(self, broken: str, at: int) -> Violation:
        return Violation(broken, self.trace(at), self.states[at])

    def check_end(self, is_end: Callable[[S], bool], *, without: frozenset[str], name: str) -> None:
        """Raise `Violation` unless an end can be reached from each state, without some moves."""
        into: list[list[int]] = [[] for _ in self.states]
        for start, end, kind in self.edges:
            if kind not in without:
                into[end].append(start)
        open_ = [at for at, state in enumerate(self.states) if is_end(state)]
        reaches = bytearray(len(self.states))
        for at in open_:
            reaches[at] = 1
        while open_:
            for start in into[open_.pop()]:
                if not reaches[start]:
                    reaches[start] = 1
                    open_.append(start)
        stuck = reaches.find(0)
        if stuck >= 0:
            raise self.violation(name, stuck)


def explore(
    start: S, moves: Callable[[S], Iterator[Move]], broken: Callable[[S, list[Move]], str | None]
) -> Explored[S]:
    """Visit every state that can be reached from ``start``.

    ``moves(state)`` are the steps that are possible in a state; ``broken(state, moves)`` names the
    property that the state violates. Raises `Violation` at the first such state.
    """
    found = Explored([start], [(0, ())], [])
    numbers = {start: 0}
    states, parents, edges = found.states, found.parents, found.edges
    at = 0
    while at < len(states):
        state = states[at]
        possible = list(moves(state))
        name = broken(state, possible)
        if name is not None:
            raise found.violation(name, at)
        for what, after, kind in possible:
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(states)
                states.append(after)
                parents.append((at, what))
            edges.append((at, number, kind))
        at += 1
    return found
