"""What the admin's change list asks of a queryset, answered by the lock stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from ..lease import LockInfo
from ..models import Lock
from ..ordering import in_order
from .seen import Picked, row_of
from .shelf import Shelf

__all__ = ["Rows", "Test"]

Test = Callable[[LockInfo], bool]


class Rows:
    """Locks of some stores: one store after the other, soonest to expire first in each.

    A page costs one count for each store and one listing for each that the page reaches
    into, however many locks there are. What is searched, filtered or sorted by something
    else reads the `LOOK` soonest to expire of each store, and no more.
    """

    model = Lock
    ordered = True

    def __init__(
        self,
        shelves: Sequence[Shelf],
        found: list[Lock] | None = None,
        *,
        latest: bool = False,
        looked_at: Sequence[LockInfo] | None = None,
        problem: str | None = None,
    ) -> None:
        self._shelves = shelves
        self._found = found
        self._latest = latest
        self.looked_at = looked_at
        """all that a search or filter read; None where there was none"""
        self._problem = problem

    @property
    def problems(self) -> list[str]:
        """A sentence for each store that had no answer, or for a setting that names none."""
        own = [self._problem] if self._problem else []
        return own + [shelf.problem for shelf in self._shelves if shelf.problem]

    @property
    def notes(self) -> list[str]:
        """A sentence for each store that was not looked at as a whole."""
        return [shelf.partly for shelf in self._shelves if shelf.partly]

    @property
    def by_store(self) -> bool:
        """Whether the order holds within each store alone: to merge them a page would have to
        read all that stands before it."""
        return self._found is None and sum(shelf.count > 0 for shelf in self._shelves) > 1

    def of_store(self, alias: str | None) -> Rows:
        """Only those of one store; all for None."""
        if alias is None:
            return self
        return Rows([shelf for shelf in self._shelves if shelf.alias == alias])

    def narrowed(
        self, query: str, tests: Sequence[Test], order: str = "ttl", *, endless: bool = False
    ) -> Rows:
        """The locks that pass every test, and in whose name, task, task id, host or pid every
        word of ``query`` occurs, by "ttl", "name" or "age", backwards with a "-" before it.

        With ``endless`` those without a TTL, and no others.
        """
        words = query.casefold().split()
        if not (words or tests or endless) and order in ("ttl", "-ttl"):
            return Rows(self._shelves, latest=order == "-ttl")
        found: list[LockInfo] = []
        looked_at: list[LockInfo] = []
        for shelf in self._shelves:
            infos = shelf.endless if endless else shelf.nearest
            looked_at += infos
            matches = [info for info in infos if _matches(info, words)]
            exact = self._exact(shelf, query.strip()) if words and not endless else None
            if exact and all(info.name != exact.name for info in matches):
                matches.append(exact)
            found += [info for info in matches if all(test(info) for test in tests)]
        rows = [row_of(info) for info in in_order(found, order)]
        return Rows(self._shelves, rows, looked_at=looked_at)

    @staticmethod
    def _exact(shelf: Shelf, name: str) -> LockInfo | None:
        try:
            return shelf.get(name)
        except ValueError:  # no lock can have that name
            return None

    def filter(self, *, pk__in: Sequence[str]) -> Picked:
        """The leases whose boxes were ticked, as their stores know them now.

        Raises `TaskLockError` for a store without an answer: to an operator who is about to
        clear, no answer must not look like no lock. Raises `BadRequest` for what no box held.
        """
        return Picked.from_boxes(pk__in)

    def count(self) -> int:
        if self._found is not None:
            return len(self._found)
        return sum(shelf.count for shelf in self._shelves)

    @cached_property
    def _all(self) -> list[Lock]:
        return self[:]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Lock]:
        return iter(self._all)

    def __getitem__(self, window: slice) -> list[Lock]:
        if self._found is not None:
            return self._found[window]
        start, stop, _step = window.indices(self.count())
        rows: list[Lock] = []
        for shelf in self._shelves:
            if start < min(stop, shelf.count):
                infos = shelf.window(start, min(stop, shelf.count), latest=self._latest)
                rows += map(row_of, infos)
            start, stop = max(0, start - shelf.count), max(0, stop - shelf.count)
        return rows

    def _clone(self) -> Rows:
        return self


def _matches(info: LockInfo, words: list[str]) -> bool:
    if not words:
        return True
    owner = info.owner
    text = "\n".join(
        str(value)
        for value in (info.name, owner.task, owner.task_id, owner.host, owner.pid)
        if value is not None
    ).casefold()
    return all(word in text for word in words)
