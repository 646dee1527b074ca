"""
Loads the tasks of the project's Celery apps as a worker does, and checks them.

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

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from celery import current_app
from django.core import checks
from django.urls import get_script_prefix, set_script_prefix

from .._compat.celery import SKIP_CHECKS, active_apps, is_of_project, made_tasks, make_tasks
from .._values.words import printable
from ..checks import check_app
from ..conf import configured_stores
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..stores import stores
from .task import LockedTask

__all__ = ["check_tasks", "load_tasks", "locked_tasks"]

_loading = threading.RLock()


def load_tasks() -> None:
    """Load the tasks of all apps, as workers do.

    Raises what the import of a module raises, and the error of a task that cannot be made.
    """
    for app in (*active_apps(), current_app):
        _import_tasks(app)
        make_tasks(app)


def locked_tasks() -> dict[str, LockedTask]:
    """Return the locked tasks of all apps, by name. Of those with one name, that of the current
    app.

    In a thread, for example of a web server, the current app is the project's only if the project
    made it the default. So the other apps are searched as well.
    """
    tasks = {task.name: task for app in (*active_apps(), current_app) for task in made_tasks(app)}
    return {name: task for name, task in sorted(tasks.items()) if isinstance(task, LockedTask)}


def check_tasks() -> list[checks.CheckMessage]:
    """Return what is wrong with the tasks. Their options were checked when they were made."""
    apps = [app for app in active_apps() if is_of_project(app)]
    messages = [message for app in apps for message in _load(app)] if apps else check_app()
    with suppress(InvalidLockConfig):  # The check of the stores reports it.
        configured = configured_stores()
        for task in locked_tasks().values():
            messages += _check_task(task, configured)
    return messages


def _load(app: Any) -> Iterator[checks.CheckMessage]:
    what = "Tasks of the Celery app {!r} cannot be loaded, and are not checked: {}: {}"
    try:
        _import_tasks(app)
        what = "A task of the Celery app {!r} cannot be made, and is not checked: {}: {}"
        make_tasks(app)
    except Exception as error:
        hint = f"A worker fails with the same error: celery --app {app.main} worker"
        message = what.format(app.main, type(error).__name__, printable(error))
        yield checks.Warning(message, hint=hint, id="django_tasklock.W005")


def _import_tasks(app: Any) -> None:
    # Without Celery's Django checks: this may be called by one of those.
    with _loading:
        before, prefix = os.environ.get(SKIP_CHECKS, ""), get_script_prefix()
        os.environ[SKIP_CHECKS] = "1"
        try:
            app.loader.import_default_modules()
        finally:
            set_script_prefix(prefix)  # `django.setup` overwrites the request's.
            os.environ[SKIP_CHECKS] = before  # To Celery "" is as good as none.


def _check_task(task: LockedTask, configured: Mapping[str, Any]) -> Iterator[checks.CheckMessage]:
    def error(what: object, id: str) -> checks.CheckMessage:
        return checks.Error(f"task {task.name}: {what}", id=id)

    if task.guard is not None:
        try:
            if problem := task.guard.fence_trouble():
                yield error(problem, id="django_tasklock.E005")
        except InvalidLockConfig as wrong:  # Of its model or its fields.
            yield error(wrong, id="django_tasklock.E003")
    if task.lock_store not in configured:
        yield error(f"there is no lock store {task.lock_store!r}", id="django_tasklock.E004")
        return
    with suppress(InvalidLockConfig, StoreUnavailable):  # The checks of the stores report it.
        store = stores[task.lock_store]
        try:
            if task.cooling_times is not None:
                task.cooling_times.check(store)
        except InvalidLockConfig as wrong:
            yield error(wrong, id="django_tasklock.E006")
    ttl = configured[task.lock_store].ttl if task.lock_ttl is None else task.lock_ttl
    limit = task.time_limit or task.app.conf.task_time_limit
    if not task.lock_renew and (limit is None or ttl < limit):
        runs = f"may run for {limit} s" if limit else "has no time limit"
        what = f"its lease lasts {ttl:g} s and is not renewed, and the task {runs}."
        hint = "Leave lock_renew on, or give the task a time_limit of at most lock_ttl."
        yield checks.Warning(f"task {task.name}: {what}", hint=hint, id="django_tasklock.W004")
