"""Reading one store for one request of the admin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import NamedTuple, TypeVar

from django.utils.translation import gettext

from .._engine.service import LockService, locks
from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig, ListingNotSupported, StoreUnavailable, TaskLockError
from ..operators.kept_search import FoundAt, kept_search, question
from ..operators.work import CeleryMissing
from ..stores import stores
from ..stores.criteria import Criteria
from ..stores.search import Found

__all__ = ["MAX_LOCKS_READ", "NOT_KNOWN", "Searched", "StoreReader", "aliases", "problem_of"]

MAX_LOCKS_READ = 5000
"""reservations of a store that a page reads: the soonest to end"""
CHOICES_LOCKS = 200
"""locks of a store, the soonest to expire, whose tasks and hosts the filters offer"""
KEPT_FROM_LOCKS = 5000
"""in stores with more locks, what a long search has found is kept for some seconds"""
NOT_KNOWN = (TaskLockError, InvalidLockConfig, ImportError)
"""errors that leave an operator without an answer; an import fails where a task's module needs a
package that only its worker has"""
T = TypeVar("T")


class Searched(NamedTuple):
    """What is searched for, and the order, one of `ordering.ORDERS`."""

    criteria: Criteria
    order: str
    endless: bool
    """only locks that never expire"""


def problem_of(error: Exception) -> str:
    """Return a sentence for an operator: why there is no answer."""
    if isinstance(error, ListingNotSupported):
        return gettext(
            "The store “%(store)s” cannot list its locks. "
            "Search for a lock’s exact name to see that lock."
        ) % {"store": error.store}
    if isinstance(error, StoreUnavailable):
        return gettext("The store “%(store)s” is unavailable: %(reason)s") % {
            "store": error.store,
            "reason": error.reason,
        }
    if isinstance(error, CeleryMissing):
        return gettext(
            "Celery cannot be imported here, so what tasks work on is not known: %(reason)s"
        ) % {"reason": error.reason}
    if isinstance(error, ImportError):
        return gettext(
            "A module with tasks cannot be imported, so what they work on is not known here: "
            "%(reason)s"
        ) % {"reason": error}
    return str(error)


def aliases() -> tuple[list[str], str | None]:
    """Return the aliases of all stores; none, and a sentence, if the setting is wrong."""
    try:
        return list(stores), None
    except InvalidLockConfig as error:
        return [], problem_of(error)


class StoreReader:
    """Reads one store during one request.

    The store is asked each question at most once. After it could not be reached it is not asked
    again: every further question would cost a timeout.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.problem: str | None = None
        self._reachable = True
        self._listable = True

    @property
    def silent(self) -> bool:
        """Whether the store was asked, and did not answer."""
        return not self._reachable

    @cached_property
    def count(self) -> int:
        """How many locks the store has; 0 if it did not answer, see ``problem``."""
        return self._list(lambda service: service.count(), 0)

    @cached_property
    def nearest(self) -> list[LockInfo]:
        """The soonest to expire, `CHOICES_LOCKS` of them."""
        return self._list(lambda service: service.list(limit=CHOICES_LOCKS), [])

    @property
    def keeps_searches(self) -> bool:
        """Whether searches of this store, if it is a large one, are kept for some seconds."""
        return self._ask(lambda service: service.store.keeps_searches, False)

    def search(self, asked: Searched, reach: int, ahead: int) -> FoundAt:
        """The first locks that match: those that a page needs, and some ahead.

        No index has those that never expire: they are searched for among the keys of the whole
        store, until as many were found.
        """
        liveness = Liveness()

        def matches(info: LockInfo) -> bool:
            if asked.endless and info.ttl is not None:
                return False
            return asked.criteria.matches(info, liveness)

        def found(service: LockService) -> FoundAt:
            store = service.store

            def look(most: int) -> Found:
                if not asked.endless:
                    return store.search(asked.criteria, asked.order, most)
                every = store.endless(asked.criteria.prefix)
                some = list(islice(filter(matches, every), most + 1))
                return Found(some[:most], len(some) > most)

            # A store with few locks may have any number of other keys.
            large = asked.endless or self.count > KEPT_FROM_LOCKS
            if not self._reachable:
                return FoundAt([], False)
            if large and store.keeps_searches:
                return kept_search(store, question(*asked), look, matches, reach, ahead)
            infos, more = look(reach + ahead)
            return FoundAt(infos, more)

        return self._list(found, FoundAt([], False))

    def window(self, start: int, stop: int, *, latest: bool = False) -> list[LockInfo]:
        """Return the locks from ``start`` to ``stop`` in the order of expiry, or in its reverse."""
        if latest:
            start, stop = max(0, self.count - stop), self.count - start
        nothing: list[LockInfo] = []
        found = self._list(lambda service: service.list(limit=stop - start, offset=start), nothing)
        return found[::-1] if latest else found

    def get(self, name: str) -> LockInfo | None:
        """The lock ``name``, also where the store cannot list, or its index does not know it."""
        return self._ask(lambda service: service.get(name), None)

    def _list(self, question: Callable[[LockService], T], otherwise: T) -> T:
        return self._ask(question, otherwise) if self._listable else otherwise

    def _ask(self, question: Callable[[LockService], T], otherwise: T) -> T:
        if not self._reachable:
            return otherwise
        try:
            return question(locks.using(self.alias))
        except ListingNotSupported as error:
            self._listable = False
            self.problem = problem_of(error)
        except (InvalidLockConfig, TaskLockError) as error:
            self._reachable = False
            self.problem = problem_of(error)
        return otherwise
