"""
System checks of the tasks that are defined when ``check`` runs.

========  =======  ============================================================================
id        level    said when
========  =======  ============================================================================
``E003``  error    a task's guard names a model or a field that does not exist
``E004``  error    a task's ``lock_store`` is no alias of the setting
``E005``  error    the ``fence_field`` of a task's guard cannot hold a fence
``W004``  warning  with renewal off, a lease ends before the task's time limit, or has none to
                   end before
========  =======  ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django.core import checks

from ..conf import configured_stores
from ..exceptions import InvalidLockConfig

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["check_tasks", "known_tasks"]

known_tasks: WeakSet[type[LockedTask]] = WeakSet()
"""every class of a task that was made"""


@checks.register("tasklock")
def check_tasks(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong with the tasks as a whole; their options were checked one by one."""
    try:
        stores = configured_stores()
    except InvalidLockConfig:
        return []  # Said by the check of the stores.
    tasks = sorted((task for task in known_tasks if task.name), key=lambda task: str(task.name))
    return [message for task in tasks for message in _check_task(task, stores)]


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
