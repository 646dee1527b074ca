"""A lease in memory, and its fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..._values.owner import Owner
from ..record import new_record, record_of, waiter_of
from .ending import Ending, today

__all__ = ["Held", "next_fence"]

_last_fence = 0
"""of all stores of this process: a test may replace its store, and keep its rows"""


@dataclass(slots=True)
class Held:
    """A lease."""

    token: str
    owner: Mapping[str, Any]
    fence: int
    began: float
    """on `today`"""
    ending: Ending

    def as_owner(self) -> Owner:
        """Who holds it; of the first who waits for a permit, since when it waits as well."""
        if "waits_for" in self.owner:
            return waiter_of(record_of(new_record(self.token, self.owner, self.began)))
        return Owner.from_record(self.owner)

    def left(self) -> float:
        """The seconds that are left."""
        return self.ending.left()


def next_fence() -> int:
    """Return the fence of the next lease. Called with the guard of the stores held."""
    global _last_fence
    _last_fence = max(_last_fence + 1, int(today() * 1_000_000))
    return _last_fence
