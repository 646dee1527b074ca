"""The name of the lock that a call of a task would take, and why it is that one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .lease import LockInfo
from .work import load

__all__ = ["Explanation", "duplicate_of", "explain", "explainers", "inspectors"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a call would do about its lock.

    ``why`` says how the name comes about, ``arguments`` what it is made of; ``ttl`` and
    ``wait`` are in seconds, ``wait`` None for ever; ``guard`` is None for a task without one, and
    ``unique_while``, with ``unique_for`` in seconds and ``on_duplicate``, for one whose calls all
    count.
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
    unique_while: str | None = None
    unique_for: float | None = None
    on_duplicate: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return asdict(self)


Explainer = Callable[[str, Sequence[Any], Mapping[str, Any]], "Explanation | None"]
explainers: list[Explainer] = []
"""what knows of tasks: each returns None for a task that it does not know"""
Inspector = Callable[["Explanation"], "str | LockInfo | None"]
inspectors: list[Inspector] = []
"""what knows of the queue: each returns what an explained call would be a duplicate of"""


def explain(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain the call; None if no task of that name takes a lock.

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
    """What the call would be a duplicate of now: the task id of a copy that waits in the queue, or
    the lease of one that runs. None: it would be sent. Raises `StoreUnavailable`."""
    for inspector in inspectors:
        found = inspector(explanation)
        if found is not None:
            return found
    return None
