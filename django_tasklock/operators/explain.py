"""The name of the lock that a call of a task would take, and why it is that one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError

from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from ..guards import StatusGuard
from ..stores import stores
from .row_now import RowNow, row_now
from .work import load

__all__ = [
    "Explanation",
    "duplicate_of",
    "explain",
    "explainers",
    "inspectors",
    "namers",
    "row_of",
    "similar_tasks",
]

logger = logging.getLogger("django_tasklock")

MAX_SIMILAR = 3
"""names that are suggested in the place of a wrong one"""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a call would do about its lock.

    ``why`` says how the name comes about, ``arguments`` what it is made of; ``ttl`` and
    ``wait`` are in seconds, ``wait`` None for ever; ``guard`` is None for a task without one, and
    ``unique_while``, with ``unique_for`` in seconds and ``on_duplicate``, for one whose calls all
    count. ``debounce`` and ``debounce_max`` are in seconds, and None for a task without them.
    ``guard_options`` are those of the guard's other parameters that are set, as text. ``claims`` is
    the guard, and the key of the row that the call would claim. ``slots`` is how many calls may run
    under the name at once.
    """

    task: str
    name: str
    store: str
    why: str
    arguments: Mapping[str, str]
    ttl: float
    wait: float | None
    renew: bool
    on_conflict: str
    guard: str | None
    guard_options: Mapping[str, str] = field(default_factory=dict)
    unique_while: str | None = None
    unique_for: float | None = None
    on_duplicate: str | None = None
    debounce: float | None = None
    debounce_max: float | None = None
    claims: tuple[StatusGuard, Any] | None = None
    slots: int = 1

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values, without ``claims``."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["claims"]
        return values


Explainer = Callable[[str, Sequence[Any], Mapping[str, Any]], "Explanation | None"]
explainers: list[Explainer] = []
"""functions that know tasks; each returns None for a task that it does not know"""
Inspector = Callable[["Explanation"], "str | LockInfo | None"]
inspectors: list[Inspector] = []
"""functions that know the queue; each returns what an explained call would be a duplicate of"""
namers: list[Callable[[], Iterable[str]]] = []
"""functions that return the names of the tasks that take a lock"""


def explain(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain the call of ``task`` with ``args`` and ``kwargs``; None if no such task takes a lock.

    The modules that define tasks are imported first. Raises `TypeError` where the arguments
    do not fit the task, `ValueError` where no name can be made of them.
    """
    load()
    for explainer in explainers:
        found = explainer(task, args, kwargs)
        if found is not None:
            return found
    return None


def duplicate_of(explanation: Explanation) -> str | LockInfo | None:
    """Return what the call would be a duplicate of now, or None if it would be sent.

    That is the task id of a message in the queue, or the lease of a run. Raises `StoreUnavailable`.
    """
    for inspector in inspectors:
        found = inspector(explanation)
        if found is not None:
            return found
    return None


def row_of(explanation: Explanation) -> RowNow | str | None:
    """Return the row that the call would claim as it is now; None for a task without a guard.

    A text if that cannot be found out: the model can have no such key, the database or the store
    failed, or the guard is wrong; the last two are logged. The rest of the explanation is true
    without it.
    """
    if explanation.claims is None:
        return None
    try:
        return row_now(*explanation.claims, stores[explanation.store])
    except ValidationError as error:
        return f"not known: {' '.join(error.messages)}"
    except (StoreUnavailable, TypeError, ValueError) as error:
        return f"not known: {error}"
    except Exception as error:
        logger.exception("the row of the lock %s cannot be found out", printable(explanation.name))
        return f"not known: {error}"


def similar_tasks(name: str) -> list[str]:
    """Return the names of tasks that may be meant by ``name``, the most similar first.

    Those that end with it come before those that are spelt like it. To be called after `explain`,
    which imports the tasks.
    """
    known = sorted({known for namer in namers for known in namer()})
    ending = [each for each in known if each.endswith(f".{name}")]
    return (ending or get_close_matches(name, known, MAX_SIMILAR))[:MAX_SIMILAR]
