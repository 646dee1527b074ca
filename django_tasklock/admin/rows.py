"""What the admin's change list asks of a queryset, answered by the lock stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from django.utils.translation import gettext

from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.ordering import in_order
from ..models import Lock
from ..stores.criteria import Criteria
from .seen import SelectedLeases, row_of
from .store_reader import Searched, StoreReader

__all__ = ["COUNTED_AHEAD", "Asked", "Rows"]

COUNTED_AHEAD = 1000
"""locks that match, beyond those of the page, that are counted: to count all of them would mean to
read them all"""


class Asked(NamedTuple):
    """What a page of the list asks for.

    ``query`` is what was typed into the search. ``order`` is one of `ordering.ORDERS`.
    ``endless``: only locks without a TTL. ``reach`` is the number of the last lock on the page.
    """

    criteria: Criteria
    query: str = ""
    order: str = "ttl"
    endless: bool = False
    reach: int = 100

    @property
    def narrows(self) -> bool:
        """Whether it leaves locks out."""
        return self.endless or self.criteria != Criteria()


class Rows:
    """Locks of some stores: one store after the other, soonest to expire first in each.

    A page costs one count for each store and one listing for each that the page reaches
    into, however many locks there are. What is searched, filtered or sorted by something
    else is a search of each store, which reads no more than the page and `COUNTED_AHEAD` need.
    """

    model = Lock
    ordered = True

    def __init__(
        self,
        readers: Sequence[StoreReader],
        found: list[Lock] | None = None,
        *,
        latest: bool = False,
        whole: bool = False,
        reach: int = 0,
        looked_at: Sequence[LockInfo] | None = None,
        notes: Sequence[str] = (),
        searched_at: float | None = None,
        problem: str | None = None,
    ) -> None:
        self._readers = readers
        self._found = found
        self._latest = latest
        self._whole = whole
        """whether ``found`` is the beginning of all locks, in an order of their own"""
        self._reach = reach
        """how many locks were looked for, at least: some may have gone since they were counted"""
        self.looked_at = looked_at
        """locks whose tasks and hosts the filters offer; None: those of the page"""
        self.notes = notes
        """a sentence for each store that has more matching locks than were counted"""
        self.searched_at = searched_at
        """when it was looked which locks match, in seconds since the epoch; None: now"""
        self._problem = problem

    @property
    def problems(self) -> list[str]:
        """A sentence for each store that did not answer, or for a wrong setting."""
        own = [self._problem] if self._problem else []
        return own + [reader.problem for reader in self._readers if reader.problem]

    @property
    def keeps_searches(self) -> bool:
        """Whether all stores keep what a long search has found: to ask again costs little."""
        return all(reader.keeps_searches for reader in self._readers)

    @property
    def silent(self) -> list[str]:
        """The aliases of the stores that did not answer."""
        return [reader.alias for reader in self._readers if reader.silent]

    @property
    def by_store(self) -> bool:
        """Whether the locks of each store are sorted separately.

        To merge the stores, a page would have to read all locks before its own.
        """
        return self._found is None and sum(reader.count > 0 for reader in self._readers) > 1

    def of_store(self, alias: str | None) -> Rows:
        """Only those of one store; all for None. The reader of one that is not there says so."""
        if alias is None:
            return self
        known = [reader for reader in self._readers if reader.alias == alias]
        return Rows(known or [StoreReader(alias)])

    def narrowed(self, asked: Asked) -> Rows:
        """The locks that are asked for, as far as the page reaches, and some more."""
        order, criteria = asked.order, asked.criteria
        if not asked.narrows and order in ("ttl", "-ttl"):
            return Rows(self._readers, latest=order == "-ttl")
        ahead = COUNTED_AHEAD if asked.narrows else 0
        searched = Searched(criteria, order, asked.endless)
        found: list[LockInfo] = []
        looked_at: list[LockInfo] = []
        notes: list[str] = []
        times: list[float] = []
        for reader in self._readers:
            infos, more, at = reader.search(searched, asked.reach, ahead)
            if at is not None:
                times.append(at)
            exact = self._exact(reader, asked.query) if criteria.words else None
            if (
                exact
                and (exact.ttl is None or not asked.endless)
                and all(info.name != exact.name for info in infos)
                and criteria.matches(exact, Liveness())
            ):
                infos = [*infos, exact]
            found += infos
            looked_at += [*infos[: len(reader.nearest)], *reader.nearest]
            if more and asked.narrows:
                notes.append(_said_of(reader.alias, len(infos)))
        rows = [row_of(info) for info in in_order(found, order)]
        return Rows(
            self._readers,
            rows,
            whole=not asked.narrows,
            reach=asked.reach,
            looked_at=looked_at,
            notes=notes,
            searched_at=min(times, default=None),
        )

    @staticmethod
    def _exact(reader: StoreReader, name: str) -> LockInfo | None:
        try:
            return reader.get(name.strip())
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
        if self._found is not None and not self._whole:
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
        start, stop, _step = window.indices(self.count())
        # All of what was only sorted are more than were read for one page.
        if self._found is not None and (
            not self._whole or stop <= max(self._reach, len(self._found))
        ):
            return self._found[window]
        rows: list[Lock] = []
        for reader in self._readers:
            if start < min(stop, reader.count):
                infos = reader.window(start, min(stop, reader.count), latest=self._latest)
                rows += map(row_of, infos)
            start, stop = max(0, start - reader.count), max(0, stop - reader.count)
        return rows

    def _clone(self) -> Rows:
        return self


def _said_of(store: str, count: int) -> str:
    return gettext(
        "More than %(count)d locks of “%(store)s” match. Those beyond are counted when you open "
        "the last page."
    ) % {"count": count, "store": store}
