"""What members have answered to one question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Answers", "Enough", "never"]

T = TypeVar("T")


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What the members have answered up to now, by their numbers."""

    given: dict[int, T]
    failed: dict[int, str]
    """why those that gave none did not"""
    size: int
    """how many were asked"""

    @property
    def pending(self) -> int:
        """How many have neither answered nor failed."""
        return self.size - len(self.given) - len(self.failed)

    @property
    def unknown(self) -> int:
        """How many have not answered."""
        return self.size - len(self.given)


Enough = Callable[[Answers[T]], bool]


def never(_answers: Answers[Any]) -> bool:
    """All answers are needed."""
    return False
