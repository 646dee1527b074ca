"""Tasks with a guard, as ``locks doctor`` uses them: the names of a row's locks, and sending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ..guards import StatusGuard
from .loading import locked_tasks
from .task import LockedTask

# Two values for each argument except the key. If they give two names for one row, its lock's name
# cannot be known from the row.
PROBES = ("1", "2")


def guarded_tasks() -> Iterator[GuardedTask]:
    """Yield every task that has a guard, by name."""
    for task in locked_tasks().values():
        if task.guard is not None and not task.config_error:
            yield GuardedTask(task, task.guard)


class GuardedTask:
    """One guarded task: the names of its rows' locks, and how to send it for a row."""

    def __init__(self, task: LockedTask, guard: StatusGuard) -> None:
        self._task, self.guard = task, guard
        self.task, self.store = str(task.name), task.lock_store

    def names_of(self, pk: Any) -> Sequence[str]:
        """Return the names that a row's lock may have; none if the key alone does not give them."""
        names: list[str] = []
        for key in (pk, str(pk)):  # Callers pass it as the database has it, or as text.
            found = {self._name(key, probe) for probe in PROBES}
            if len(found) > 1:
                return ()
            names += found - {""}
        return tuple(dict.fromkeys(names))

    def _name(self, key: Any, probe: str) -> str:
        naming = self._task.naming
        # The name of ``**kwargs`` stands for any other argument.
        others = dict.fromkeys(naming.signature.parameters, probe)
        with suppress(Exception):  # Of the project's own function: there is no such lock.
            return naming.name_from({**others, self.guard.pk: key})
        return ""

    def send(self, pk: Any) -> str | None:
        """Send the task for the row, and return the message's task id.

        None for a class of the task whose ``apply_async`` returns no result. Raises `TypeError` if
        the task needs more than the key.
        """
        kwargs = {self.guard.pk: pk}
        # Celery's own check is off with ``typing=False``.
        self._task.naming.arguments_of((), kwargs)
        # Also if another message is reserved: it may be lost, and the guard lets only one work.
        return getattr(self._task.send_anyway((), kwargs), "id", None)
