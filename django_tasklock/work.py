"""The kinds of guarded work there are: what the doctor and the faces know of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from .guards import StatusGuard

__all__ = ["CeleryMissing", "Work", "load", "loaders", "sources", "works"]


class CeleryMissing(ImportError):
    """Celery cannot be imported here: no task can be known, and everything else works."""

    def __init__(self, reason: object) -> None:
        super().__init__(
            f"Celery cannot be imported here, so what tasks work on is not known: {reason}"
        )
        self.reason = str(reason)


class Work(Protocol):
    """A kind of guarded work: what is needed to know of a task."""

    guard: StatusGuard
    task: str
    store: str

    def names_of(self, pk: Any) -> Sequence[str]:
        """The names that the row's lock may have; none if the row alone does not tell."""

    def send(self, pk: Any) -> None:
        """Send the row's task again. Raises `TypeError` if the row alone does not make a call."""


sources: list[Callable[[], Iterable[Work]]] = []
"""what knows of guarded work"""
loaders: list[Callable[[], None]] = []
"""what must be called first, so that they all know"""


def load() -> None:
    """Import the modules that define tasks. Raises `CeleryMissing`, and what importing raises."""
    for loader in loaders:
        loader()


def works() -> Iterator[Work]:
    """Every guarded task; the modules that define tasks are imported first, as by `load`."""
    load()
    for source in sources:
        yield from source()
