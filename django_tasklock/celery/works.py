"""The guarded tasks, as the doctor sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import Parameter
from typing import Any

from ..guards import StatusGuard
from ..work import sources
from .loading import task_apps
from .options import body_signature
from .task import LockedTask

__all__ = ["TaskWork", "guarded_tasks"]

PROBES = ("1", "2")
"""two values of every argument but the key: a lock's name that differs is not the row's alone"""


def guarded_tasks() -> Iterator[TaskWork]:
    """Every task that has a guard."""
    tasks: dict[str, Any] = {}
    for app in task_apps():
        for name, task in app.tasks.items():
            tasks.setdefault(name, task)
    for _, task in sorted(tasks.items()):
        if isinstance(task, LockedTask) and task.guard is not None:
            yield TaskWork(task, task.guard)


class TaskWork:
    """One task's guarded work."""

    def __init__(self, task: LockedTask, guard: StatusGuard) -> None:
        self._task = task
        self.guard = guard
        self.task = str(task.name)
        self.store = task.lock_store
        signature = body_signature(type(task))
        assert signature is not None
        parameters = signature.parameters
        self._others = [name for name in parameters if name != guard.pk]
        if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
            self._others.append("any_other")

    def names_of(self, pk: Any) -> Sequence[str]:
        """The names that the row's lock may have; none if the row alone does not tell."""
        names: dict[str, None] = {}
        # Callers pass the key as the database has it, or as text.
        for key in dict.fromkeys((pk, str(pk))):
            name, other = (self._name(key, probe) for probe in PROBES)
            if name != other:
                return ()
            if name is not None:
                names[name] = None
        return tuple(names)

    def _name(self, key: Any, probe: str) -> str | None:
        try:
            return self._task.lock_name_from(
                {**dict.fromkeys(self._others, probe), self.guard.pk: key}
            )
        except Exception:
            return None  # Code of the project's own; and there is no such lock.

    def send(self, pk: Any) -> None:
        """Send the task for the row. Raises `TypeError` if it needs more than the key."""
        # Whatever is reserved: a copy that waits may never come, and two do the work once.
        self._task.send_anyway(kwargs={self.guard.pk: pk})


sources.append(guarded_tasks)
