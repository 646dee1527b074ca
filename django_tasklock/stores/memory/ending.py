"""When something is over: by the time that a test sets, or by the real clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..._values import clock

__all__ = ["Ending", "Expiring", "today"]

ITEMS_BEFORE_TIDYING = 1024
"""what is over is removed from a dict of at least so many items, each time that it has doubled"""


def today() -> float:
    """Seconds since the epoch, at the time that freezegun or time-machine may have set.

    Of what both of them set, this is what a project's own code reads, through
    ``django.utils.timezone.now``. freezegun gives ``time.time`` the real time in a function that
    is the target of a thread.
    """
    # Not `from datetime import datetime`: a module imported while time is frozen may keep that.
    return dt.datetime.now(dt.timezone.utc).timestamp()


@dataclass(frozen=True, slots=True)
class Ending:
    """A moment on two clocks. It has come as soon as one of them says so.

    The real clock counts as well so that the store agrees with `Lease.held`, which goes by it, and
    so that a lease taken in a future that a test has left again does not last until that future.
    """

    set: float
    """on `today`"""
    real: float
    """on `clock.now`"""

    @classmethod
    def after(cls, seconds: float) -> Ending:
        """The moment that is so many seconds from now."""
        return cls(today() + seconds, clock.now() + seconds)

    def left(self) -> float:
        """Seconds until then, at most 0 once it has come."""
        return min(self.set - today(), self.real - clock.now())


class _Ends(Protocol):
    ending: Ending


T = TypeVar("T", bound=_Ends)


class Expiring(Generic[T]):
    """A dict of values that are removed when they are over."""

    def __init__(self) -> None:
        self._values: dict[str, T] = {}
        self._tidied = 0

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self, key: str) -> T | None:
        """The value, unless it is over."""
        value = self._values.get(key)
        if value is not None and value.ending.left() <= 0:
            del self._values[key]
            return None
        return value

    def put(self, key: str, value: T) -> None:
        """Keep the value until it is over."""
        if len(self._values) >= max(ITEMS_BEFORE_TIDYING, 2 * self._tidied):
            for old in self:
                self.get(old)
            self._tidied = len(self._values)
        self._values[key] = value

    def remove(self, key: str) -> None:
        """Remove the value, if there is one."""
        self._values.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        """All keys at this moment, also those of values that are over."""
        return iter(list(self._values))

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()
