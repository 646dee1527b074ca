"""What a rule finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos_tasks.story import Story

__all__ = ["Rule", "Violation"]


@dataclass(frozen=True)
class Violation:
    """Something that must not have happened, to a job or to a message of it."""

    rule: str
    text: str
    job: str = ""
    call: str = ""


Rule = Callable[[Story], Iterator[Violation]]
