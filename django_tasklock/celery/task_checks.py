"""
System checks of the tasks, which are loaded as a worker loads them.

========  =======  ============================================================================
id        level    condition
========  =======  ============================================================================
``E003``  error    a task's guard names a model or a field that does not exist
``E004``  error    a task's ``lock_store`` is no alias of the setting
``E005``  error    the ``fence_field`` of a task's guard cannot hold a fence
``E006``  error    a task's lock is to cool, and its store cannot do that
``W004``  warning  with renewal off, a lease ends before the task's time limit, or the task has
                   no time limit
``W005``  warning  the tasks of an app cannot be imported, or one of them cannot be made
========  =======  ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core import checks

from .._engine.cooling import cooling_times
from .._values.describe import printable
from ..checks import check_app
from ..conf import configured_stores
from ..exceptions import InvalidLockConfig
from ..stores import stores
from .base import TaskBase, known_tasks
from .loading import load_app, project_apps

__all__ = ["check_tasks", "known_tasks"]


def check_tasks() -> list[checks.CheckMessage]:
    """Return what is wrong with the tasks. Their options were checked when they were made."""
    apps = project_apps()
    messages = [message for app in apps for message in _load(app)] if apps else check_app()
    try:
        configured = configured_stores()
    except InvalidLockConfig:
        return messages  # The check of the stores reports it.
    tasks = sorted((task for task in known_tasks if task.name), key=lambda task: str(task.name))
    for task in tasks:
        # A shared task belongs to every app.
        messages += [each for each in _check_task(task, configured) if each not in messages]
    return messages


def _load(app: Any) -> Iterator[checks.CheckMessage]:
    try:
        errors = load_app(app)
    except Exception as error:
        yield _not_loaded(app, "Tasks", "cannot be loaded, and are not checked", error)
    else:
        for each in errors:
            yield _not_loaded(app, "A task", "cannot be made, and is not checked", each)


def _not_loaded(app: Any, what: str, why: str, error: Exception) -> checks.Warning:
    return checks.Warning(
        f"{what} of the Celery app {app.main!r} {why}: {type(error).__name__}: {printable(error)}",
        hint=f"A worker fails with the same error: celery --app {app.main} worker",
        id="django_tasklock.W005",
    )


def _check_task(task: type[TaskBase], configured: Any) -> Iterator[checks.CheckMessage]:
    if task.guard is not None:
        try:
            _ = task.guard.model
            task.guard.check_fields()
        except InvalidLockConfig as error:
            yield checks.Error(f"task {task.name}: {error}", id="django_tasklock.E003")
        else:
            if problem := task.guard.fence_trouble():
                yield checks.Error(f"task {task.name}: {problem}", id="django_tasklock.E005")
    settings = configured.get(task.lock_store)
    if settings is None:
        yield checks.Error(
            f"task {task.name}: there is no lock store {task.lock_store!r}",
            id="django_tasklock.E004",
        )
        return
    times = cooling_times(
        task.lock_hold_at_least, task.lock_cooldown, task.lock_cooldown_after_error
    )
    if times is not None:
        try:
            store = stores[task.lock_store]
        except InvalidLockConfig:
            return  # Of the store itself there is an error of its own.
        try:
            times.check(store)
        except InvalidLockConfig as error:
            yield checks.Error(f"task {task.name}: {error}", id="django_tasklock.E006")
    ttl = settings.ttl if task.lock_ttl is None else task.lock_ttl
    app: Any = task.app
    limit = task.time_limit or app.conf.task_time_limit
    if not task.lock_renew and (limit is None or ttl < limit):
        runs = f"may run for {limit} s" if limit else "has no time limit"
        yield checks.Warning(
            f"task {task.name}: its lease lasts {ttl:g} s and is not renewed, and the task {runs}.",
            hint="Leave lock_renew on, or give the task a time_limit of at most lock_ttl.",
            id="django_tasklock.W004",
        )
