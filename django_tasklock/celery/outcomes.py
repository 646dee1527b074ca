"""Tells of calls of a task that did not run, by the signal `task_not_run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..signals import task_not_run
from .base import TaskBase

__all__ = ["tell_not_run"]


def tell_not_run(
    task: TaskBase,
    outcome: str,
    reason: str,
    task_id: Any,
    name: str | tuple[Sequence[Any], Mapping[str, Any]],
) -> None:
    """Send `task_not_run`, if anybody listens.

    ``name``: that of the lock, or the call's arguments, of which it is made. ``outcome`` and
    ``reason`` are of the closed sets that django_tasklock/signals.py has.
    """
    if not task_not_run.receivers:
        return
    if not isinstance(name, str):
        args, kwargs, name = *name, ""
        with suppress(Exception):  # Of a function of the project; the run has had the name before.
            name = task.lock_name_of(args, kwargs)
    task_not_run.send_robust(
        type(task), task=str(task.name), task_id=task_id, name=name, store=task.lock_store,
        template=task.name_template, outcome=outcome, reason=reason,
    )  # fmt: skip
