"""How a task's lock gets its name, for ``manage.py locks explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import current_app

from ..explain import Explanation, explainers, inspectors
from ..lease import LockInfo
from ..naming import ArgumentNames
from .task import LockedTask
from .unique import Reservation

__all__ = ["explain_call", "waits_or_runs"]


def explain_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain a call of a task of the current app."""
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
    else:
        why = f"lock_name is {lock_name!r}, filled from the arguments"
    arguments = task.arguments_of(args, kwargs)
    guard = task.guard
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
        guard=None
        if guard is None
        else f"{guard.label} {guard.pk_of(arguments)}: {guard.field} "
        f"{', '.join(map(str, guard.source))} -> {guard.to} -> {guard.done}",
        unique_while=task.unique_while,
        unique_for=task.unique_for if task.unique_while else None,
        on_duplicate=task.on_duplicate if task.unique_while else None,
    )


def waits_or_runs(explanation: Explanation) -> str | LockInfo | None:
    """What an explained call would be a duplicate of."""
    task = current_app.tasks.get(explanation.task)
    if not isinstance(task, LockedTask) or task.unique_while is None:
        return None
    return Reservation(task, explanation.name, "").look()


explainers.append(explain_call)
inspectors.append(waits_or_runs)
