"""Guarded work: what the doctor, the command and the admin know of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..guards import StatusGuard

__all__ = ["CeleryMissing", "Work", "load", "loaders", "sources", "works"]


class CeleryMissing(ImportError):
    """Celery cannot be imported here: tasks are not known, and everything else works."""

    def __init__(self, reason: object) -> None:
        super().__init__(
            f"Celery cannot be imported here, so what tasks work on is not known: {reason}"
        )
        self.reason = str(reason)


class Work(Protocol):
    """A task with a guard, the lock store it uses, and how to send it."""

    guard: StatusGuard
    task: str
    store: str

    def names_of(self, pk: Any) -> Sequence[str]:
        """Return the names that the row's lock may have; none if the row is not enough."""

    def send(self, pk: Any) -> str | None:
        """Send the row's task again, and return the new message's task id, None if not known.

        Raises `TypeError` if the call needs more than the row.
        """


sources: list[Callable[[], Iterable[Work]]] = []
"""functions that return guarded work"""
loaders: list[Callable[[], None]] = []
"""functions to call before the sources, which import the modules with tasks"""


def load() -> None:
    """Import the modules that define tasks. Raises `CeleryMissing`, and what importing raises."""
    for loader in loaders:
        loader()


def works() -> Iterator[Work]:
    """Yield every guarded task, after `load`. Raises `CeleryMissing`, and what importing raises."""
    load()
    for source in sources:
        yield from source()
