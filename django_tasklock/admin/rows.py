"""What the admin's change list asks of a queryset, answered by the lock stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from .._values.lock_info import LockInfo
from ..models import Lock
from ..operators.ordering import in_order
from .seen import SelectedLeases, row_of
from .store_reader import StoreReader

__all__ = ["Rows", "Test"]

Test = Callable[[LockInfo], bool]


class Rows:
    """Locks of some stores: one store after the other, soonest to expire first in each.

    A page costs one count for each store and one listing for each that the page reaches
    into, however many locks there are. What is searched, filtered or sorted by something
    else reads the `MAX_LOCKS_READ` soonest to expire of each store, and no more.
    """

    model = Lock
    ordered = True

    def __init__(
        self,
        readers: Sequence[StoreReader],
        found: list[Lock] | None = None,
        *,
        latest: bool = False,
        looked_at: Sequence[LockInfo] | None = None,
        problem: str | None = None,
    ) -> None:
        self._readers = readers
        self._found = found
        self._latest = latest
        self.looked_at = looked_at
        """all locks that a search or filter read; None without one"""
        self._problem = problem

    @property
    def problems(self) -> list[str]:
        """A sentence for each store that did not answer, or for a wrong setting."""
        own = [self._problem] if self._problem else []
        return own + [reader.problem for reader in self._readers if reader.problem]

    @property
    def notes(self) -> list[str]:
        """A sentence for each store of which only a part was read."""
        return [reader.partly for reader in self._readers if reader.partly]

    @property
    def by_store(self) -> bool:
        """Whether the locks of each store are sorted separately.

        To merge the stores, a page would have to read all locks before its own.
        """
        return self._found is None and sum(reader.count > 0 for reader in self._readers) > 1

    def of_store(self, alias: str | None) -> Rows:
        """Only those of one store; all for None."""
        if alias is None:
            return self
        return Rows([reader for reader in self._readers if reader.alias == alias])

    def narrowed(
        self, query: str, tests: Sequence[Test], order: str = "ttl", *, endless: bool = False
    ) -> Rows:
        """The locks that pass every test, and in whose name, task, task id, host or pid every
        word of ``query`` occurs, by "ttl", "name" or "age", backwards with a "-" before it.

        With ``endless`` those without a TTL, and no others.
        """
        words = query.casefold().split()
        if not (words or tests or endless) and order in ("ttl", "-ttl"):
            return Rows(self._readers, latest=order == "-ttl")
        found: list[LockInfo] = []
        looked_at: list[LockInfo] = []
        for reader in self._readers:
            infos = reader.endless if endless else reader.nearest
            looked_at += infos
            matches = [info for info in infos if _matches(info, words)]
            exact = self._exact(reader, query.strip()) if words and not endless else None
            if exact and all(info.name != exact.name for info in matches):
                matches.append(exact)
            found += [info for info in matches if all(test(info) for test in tests)]
        rows = [row_of(info) for info in in_order(found, order)]
        return Rows(self._readers, rows, looked_at=looked_at)

    @staticmethod
    def _exact(reader: StoreReader, name: str) -> LockInfo | None:
        try:
            return reader.get(name)
        except ValueError:  # no lock can have that name
            return None

    def filter(self, *, pk__in: Sequence[str]) -> SelectedLeases:
        """Return the leases whose boxes were ticked, as their stores know them now.

        Raises `TaskLockError` for a store that does not answer: to an operator who is about to
        clear, no answer must not look like no lock. Raises `BadRequest` for a value of no box.
        """
        return SelectedLeases.from_boxes(pk__in)

    def count(self) -> int:
        """Return how many locks there are on all pages."""
        if self._found is not None:
            return len(self._found)
        return sum(reader.count for reader in self._readers)

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
        for reader in self._readers:
            if start < min(stop, reader.count):
                infos = reader.window(start, min(stop, reader.count), latest=self._latest)
                rows += map(row_of, infos)
            start, stop = max(0, start - reader.count), max(0, stop - reader.count)
        return rows

    def _clone(self) -> Rows:
        return self


def _matches(info: LockInfo, words: list[str]) -> bool:
    if not words:
        return True
    owner = info.owner
    text = "\n".join(
        str(value)
        for value in (
            info.name,
            owner.task,
            owner.task_id,
            owner.host,
            owner.pid,
            owner.held_by,
            owner.reason,
        )
        if value is not None
    ).casefold()
    return all(word in text for word in words)
