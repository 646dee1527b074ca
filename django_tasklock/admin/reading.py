"""What one store says for one page: its locks, or in words why they are not known."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.utils.translation import gettext

from .._engine.service import locks
from .._values.arguments import is_name
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig, ListingNotSupported, StoreUnavailable, TaskLockError

# Locks that a page reads, the soonest to expire first: more would take too long.
MOST_LOCKS = 1000
# What leaves an operator without an answer. An import fails where a task's module needs what only
# its worker has.
NOT_KNOWN = (TaskLockError, InvalidLockConfig, ImportError)


@dataclass
class Reading:
    """The locks of a store that a search has found.

    ``total`` counts all locks of the store; None where it did not say. ``more``: it has more than
    `MOST_LOCKS`, and ``found`` may lack some that match. ``problem`` says why there is no answer,
    and ``silent`` that the store did not give one.
    """

    found: list[LockInfo] = field(default_factory=list)
    total: int | None = None
    more: bool = False
    problem: str = ""
    silent: bool = False


def read(alias: str, query: str) -> Reading:
    """Return the locks that match ``query``: an exact name, the beginning of one with ``*`` behind
    it, or words of name, task, task id, host, process id and operator."""
    reading = Reading()
    try:
        service = locks.using(alias)
        query = query.strip()
        # Also where the store does not list it: a key that other code has set.
        exact = service.get(query) if is_name(query) else None
        reading.found = [exact] if exact else []
        some = service.list(limit=MOST_LOCKS)
        reading.total = len(some) if len(some) < MOST_LOCKS else service.count()
        reading.more = reading.total > MOST_LOCKS
        if reading.more and is_name(beginning := query.removesuffix("*")):
            some += service.list(beginning, MOST_LOCKS)
        by_key = {info.key: info for info in some if _matches(info, query)}
        reading.found += [info for key, info in by_key.items() if not exact or key != exact.key]
    except NOT_KNOWN as error:
        reading.problem = problem_of(error)
        reading.silent = not isinstance(error, ListingNotSupported)
    return reading


def _matches(info: LockInfo, query: str) -> bool:
    if query.endswith("*"):
        return info.name.startswith(query[:-1])
    owner = info.owner
    texts = (
        info.name, owner.task, owner.task_id, owner.host, owner.pid, owner.held_by, owner.reason,
    )  # fmt: skip
    said = " ".join(str(text) for text in texts if text is not None).lower()
    return all(word in said for word in query.lower().split())


def problem_of(error: Exception) -> str:
    """Return a sentence for an operator: why there is no answer."""
    match error:
        case ListingNotSupported():
            words = gettext(
                "The store “%(store)s” cannot list its locks. "
                "Search for a lock’s exact name to see that lock."
            )
        case StoreUnavailable():
            words = gettext("The store “%(store)s” is unavailable: %(reason)s")
        case ImportError():
            words = gettext("The tasks cannot be imported here: %(reason)s")
        case _:
            return str(error)
    return words % {"reason": error, **vars(error)}
