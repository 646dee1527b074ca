"""What must not happen: each module has rules of one kind, functions of a story."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.story import Story

__all__ = ["Rule", "Violation"]


@dataclass(frozen=True)
class Violation:
    """Something that must not have happened.

    Attributes:
        rule: the name of the rule, in two or three words.
        text: what happened, with calls, tokens, fences and moments.
        since, at: the stretch of the history in which it shows.
        name: the lock's name, or "".
        calls: the calls that had a part in it.
    """

    rule: str
    text: str
    since: float
    at: float
    name: str = ""
    calls: Sequence[str] = ()


Rule = Callable[[Story], Iterator[Violation]]
