"""What a store may implement to look at many locks in little time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.ordering import first_in_order
from .criteria import Criteria
from .required import RequiredMethods

__all__ = ["Found", "Search"]

LOCKS_PER_LOOK = 500
"""locks that are asked for once more together"""


class Found(NamedTuple):
    """What a search has found."""

    infos: list[LockInfo]
    more: bool
    """whether there are others, which were not counted"""


class Search(RequiredMethods):
    """Optional methods, with defaults made of `list` and `scan`.

    While one of them reads in several steps, locks come and go. A lock that is held all the time is
    seen once, unless it is extended to end sooner than before.
    """

    keeps_searches = False
    """Whether a note may hold thousands of names and costs little, so that what a long search has
    found can be kept for those who ask the same."""

    if TYPE_CHECKING:  # `BaseStore` has them.

        def scan(self, prefix: str = "") -> Iterator[LockInfo]: ...

        def get_many(self, names: Sequence[str]) -> Sequence[LockInfo | None]: ...

        def list(
            self, prefix: str = "", limit: int | None = None, offset: int = 0
        ) -> list[LockInfo]: ...

    def walk(self, prefix: str = "") -> Iterator[LockInfo]:
        """All live locks, the soonest to expire first; read piece by piece where the store can.

        Args:
            prefix: only those whose names begin with it.

        Raises `ListingNotSupported`.
        """
        return iter(self.list(prefix))

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        """Every key that is a lock and never expires, in no order: `scan`, without the others.

        Raises `ListingNotSupported`.
        """
        return (info for info in self.scan(prefix) if info.ttl is None)

    def walk_matching(self, criteria: Criteria) -> Iterator[LockInfo]:
        """Those of `walk` that match; where the store can, the others are not read in full.

        With ``gone``, a lock was still held by the same lease after it was looked whether its
        process lives: it may have released the lock, and ended, since the lock was read.

        Args:
            criteria: what a lock must be.

        Raises `ListingNotSupported`.
        """
        matching = self._matching(criteria)
        return self._still_held(matching) if criteria.gone else matching

    def _matching(self, criteria: Criteria) -> Iterator[LockInfo]:
        liveness = Liveness()
        walk: Iterable[LockInfo] = self.walk(criteria.prefix)
        within = criteria.within
        if within is not None:
            walk = takewhile(lambda info: info.ttl is not None and info.ttl <= within, walk)
        return (info for info in walk if criteria.matches(info, liveness))

    def _still_held(self, infos: Iterator[LockInfo]) -> Iterator[LockInfo]:
        while some := list(islice(infos, LOCKS_PER_LOOK)):
            now = self.get_many([info.name for info in some])
            for info, held in zip(some, now, strict=True):
                if info.is_same_lease(held):
                    yield info

    def search(self, criteria: Criteria, order: str = "ttl", most: int | None = None) -> Found:
        """The first locks that match. Locks that the store's list does not have are not found.

        Args:
            criteria: what a lock must be.
            order: "ttl" (the soonest to expire first), "name", "age" (the youngest first),
                "waiters" (the fewest first) or "wait" (the shortest first); with a "-" before it
                the reverse.
            most: how many to return at most; None: all.

        Raises `ListingNotSupported`.
        """
        matching = self._matching(criteria)
        enough = None if most is None else most + 1
        if order == "ttl":
            found = [*islice(matching, enough)]
        else:
            found = first_in_order(matching, order, enough)
        return Found(found[:most], most is not None and len(found) > most)
