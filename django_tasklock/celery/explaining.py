"""What operators are told of tasks: how a lock gets its name, and which tasks have a guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import current_app

from .._engine.names import ArgumentNames
from .._values.lock_info import LockInfo
from ..guards import StatusGuard
from ..operators.work import Explanation
from .task import LockedTask
from .unique import Reservation
from .works import guarded_tasks

__all__ = ["duplicate_of", "explain_call", "guarded_tasks"]


def explain_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain a call of a task of the current app. Returns None if there is no such locked task."""
    task = current_app.tasks.get(name)
    if not isinstance(task, LockedTask):
        return None
    lock_name = type(task).lock_name
    if lock_name is None:
        why = "the task has no lock_name: its own name and a digest of the call's arguments"
    elif isinstance(lock_name, ArgumentNames):
        why = f"lock_name is {lock_name!r}: the task's name and these arguments"
    elif callable(lock_name):
        called = getattr(lock_name, "__qualname__", repr(lock_name))
        why = f"lock_name is the function {called}, called with the arguments"
    elif task._template.constant:
        why = f"lock_name is {lock_name!r}, the same for all calls"
    else:
        why = f"lock_name is {lock_name!r}, filled from the arguments"
    arguments = task.arguments_of(args, kwargs)
    guard = task.guard
    claims = None if guard is None else (guard, guard.pk_of(arguments))
    return Explanation(
        task=name,
        name=task.lock_name_of(args, kwargs),
        store=task.lock_store,
        why=why,
        arguments={key: repr(value) for key, value in arguments.items()},
        ttl=task.locks.store.settings.ttl if task.lock_ttl is None else task.lock_ttl,
        wait=task.lock_wait,
        renew=task.lock_renew,
        on_conflict=task.on_conflict,
        guard=None if claims is None else _guard(*claims),
        guard_options={} if guard is None else _guard_options(guard),
        unique_while=task.unique_while,
        unique_for=task.unique_for if task.unique_while else None,
        on_duplicate=task.on_duplicate if task.unique_while else None,
        debounce=task.debounce,
        debounce_max=task.debounce_max,
        claims=claims,
        slots=task.lock_slots_of(args, kwargs),
    )


def _guard(guard: StatusGuard, pk: Any) -> str:
    failed = "" if guard.failed is None else f", or {guard.failed}"
    return (
        f"{guard.label} {pk}: {guard.field} "
        f"{', '.join(map(str, guard.source))} -> {guard.to} -> {guard.done}{failed}"
    )


def _guard_options(guard: StatusGuard) -> dict[str, str]:
    """The parameters of the guard that are set, and that `_guard` does not show or not by name."""
    names = ("failed", "filter", "exclude", "fence_field")
    values = {name: getattr(guard, name) for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def duplicate_of(explanation: Explanation) -> str | LockInfo | None:
    """Return the task id or the lease of which the explained call would be a duplicate, or None."""
    task = current_app.tasks.get(explanation.task)
    if not isinstance(task, LockedTask) or task.unique_while is None:
        return None
    return Reservation(task, explanation.name, "").peek()
