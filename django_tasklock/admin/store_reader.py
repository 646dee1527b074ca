"""Reading one store for one request of the admin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from django.utils.translation import gettext

from .._engine.service import LockService, locks
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig, ListingNotSupported, StoreUnavailable, TaskLockError
from ..operators.hints import command_line
from ..operators.work import CeleryMissing
from ..stores import stores

__all__ = ["MAX_LOCKS_READ", "NOT_KNOWN", "StoreReader", "aliases", "problem_of"]

MAX_LOCKS_READ = 5000
"""locks of a store that a search, a filter or an order reads: the soonest to expire. A page costs
no more than that, however many there are."""
NOT_KNOWN = (TaskLockError, InvalidLockConfig, ImportError)
"""errors that leave an operator without an answer; an import fails where a task's module needs a
package that only its worker has"""
T = TypeVar("T")


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

    @cached_property
    def count(self) -> int:
        """How many locks the store has; 0 if it did not answer, see ``problem``."""
        return self._list(lambda service: service.count(), 0)

    @cached_property
    def nearest(self) -> list[LockInfo]:
        """The soonest to expire, `MAX_LOCKS_READ` of them."""
        return self._list(lambda service: service.list(limit=MAX_LOCKS_READ), [])

    @cached_property
    def endless(self) -> list[LockInfo]:
        """All that never expire. No index has them: this walks through the whole store."""
        return self._list(
            lambda service: [info for info in service.store.scan() if info.ttl is None], []
        )

    @property
    def partly(self) -> str | None:
        """A sentence where `nearest` is not all there is."""
        if "nearest" not in self.__dict__ or self.count <= MAX_LOCKS_READ:
            return None
        return gettext(
            "Only %(read)d of the %(count)d locks of “%(store)s” were read, those that expire "
            "soonest. “%(command)s” reads all of them."
        ) % {
            "read": MAX_LOCKS_READ,
            "store": self.alias,
            "count": self.count,
            "command": command_line("list", store=self.alias),
        }

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
