"""
System checks of the tasks, which are loaded as a worker does.

========  =======  ============================================================================
id        level    said when
========  =======  ============================================================================
``E003``  error    a task's guard names a model or a field that does not exist
``E004``  error    a task's ``lock_store`` is no alias of the setting
``E005``  error    the ``fence_field`` of a task's guard cannot hold a fence
``W004``  warning  with renewal off, a lease ends before the task's time limit, or has none to
                   end before
``W005``  warning  the tasks of an app cannot be loaded
========  =======  ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django.core import checks

from ..checks import check_app
from ..conf import configured_stores
from ..describe import printable
from ..exceptions import InvalidLockConfig
from .loading import load_app, project_apps

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["check_tasks", "known_tasks"]

known_tasks: WeakSet[type[LockedTask]] = WeakSet()
"""every class of a task that was made"""


def check_tasks() -> list[checks.CheckMessage]:
    """What is wrong with the tasks as a whole; their options were checked one by one."""
    apps = project_apps()
    messages = [message for app in apps for message in _load(app)] if apps else check_app()
    try:
        stores = configured_stores()
    except InvalidLockConfig:
        return messages  # Said by the check of the stores.
    tasks = sorted((task for task in known_tasks if task.name), key=lambda task: str(task.name))
    for task in tasks:
        # A shared task is one of every app.
        messages += [each for each in _check_task(task, stores) if each not in messages]
    return messages


def _load(app: Any) -> Iterator[checks.CheckMessage]:
    try:
        load_app(app)
    except Exception as error:
        yield checks.Warning(
            f"Tasks of the Celery app {app.main!r} cannot be loaded, and are not checked: "
            f"{type(error).__name__}: {printable(error)}",
            hint=f"A worker fails at the same place: celery --app {app.main} worker",
            id="django_tasklock.W005",
        )


def _check_task(task: type[LockedTask], stores: Any) -> Iterator[checks.CheckMessage]:
    if task.guard is not None:
        try:
            _ = task.guard.model
            task.guard.check_fields()
        except InvalidLockConfig as error:
            yield checks.Error(f"task {task.name}: {error}", id="django_tasklock.E003")
        else:
            if trouble := task.guard.fence_trouble():
                yield checks.Error(f"task {task.name}: {trouble}", id="django_tasklock.E005")
    settings = stores.get(task.lock_store)
    if settings is None:
        yield checks.Error(
            f"task {task.name}: there is no lock store {task.lock_store!r}",
            id="django_tasklock.E004",
        )
        return
    ttl = settings.ttl if task.lock_ttl is None else task.lock_ttl
    app: Any = task.app
    limit = task.time_limit or app.conf.task_time_limit
    if not task.lock_renew and (limit is None or ttl < limit):
        runs = f"may run for {limit} s" if limit else "may run for as long as it likes"
        yield checks.Warning(
            f"task {task.name}: its lease lasts {ttl:g} s and is not renewed, and it {runs}.",
            hint="Leave lock_renew on, or give it a time_limit that is no longer than lock_ttl.",
            id="django_tasklock.W004",
        )
