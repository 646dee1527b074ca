"""The guarded tasks, for ``manage.py locks doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import Parameter
from typing import Any

from ..guards import StatusGuard
from .loading import task_apps
from .options import body_signature
from .task import LockedTask

__all__ = ["TaskWork", "guarded_tasks"]

PROBE_ARGUMENTS = ("1", "2")
"""two values for each argument except the key. If they give two names for one row, its lock's name
cannot be known from the row"""


def guarded_tasks() -> Iterator[TaskWork]:
    """Yield every task that has a guard, by name."""
    tasks: dict[str, Any] = {}
    for app in task_apps():
        for name, task in app.tasks.items():
            tasks.setdefault(name, task)
    for _, task in sorted(tasks.items()):
        if isinstance(task, LockedTask) and task.guard is not None:
            yield TaskWork(task, task.guard)


class TaskWork:
    """One guarded task: the names of its rows' locks, and how to send it for a row."""

    def __init__(self, task: LockedTask, guard: StatusGuard) -> None:
        self._task = task
        self.guard = guard
        self.task = str(task.name)
        self.store = task.lock_store
        signature = body_signature(type(task))
        assert signature is not None
        self._signature, parameters = signature, signature.parameters
        self._others = [name for name in parameters if name != guard.pk]
        if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
            self._others.append("any_other")

    def names_of(self, pk: Any) -> Sequence[str]:
        """Return the names that a row's lock may have; none if the key alone does not give them."""
        names: dict[str, None] = {}
        # Callers pass the key as the database has it or as text, which may give two names.
        for key in dict.fromkeys((pk, str(pk))):
            name, other = (self._name(key, probe) for probe in PROBE_ARGUMENTS)
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
            return None  # The project's own function failed: there is no such lock.

    def send(self, pk: Any) -> str | None:
        """Send the task for the row, and return the message's task id.

        None for a class of the task whose ``apply_async`` returns no result. Raises `TypeError` if
        the task needs more than the key.
        """
        first = next(iter(self._signature.parameters.values()), None)
        by_place = first and first.name == self.guard.pk and first.kind is first.POSITIONAL_ONLY
        args, kwargs = ((pk,), {}) if by_place else ((), {self.guard.pk: pk})
        # Celery's own check lets positional-only parameters pass, and is off with ``typing=False``.
        self._signature.bind(*args, **kwargs)
        # Also if another message is reserved: it may be lost, and the guard lets only one work.
        result = self._task.send_anyway(args, kwargs)
        task_id: str | None = getattr(result, "id", None)
        return task_id
