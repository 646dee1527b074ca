"""The tasks of the project's Celery apps: loaded as a worker does, and found by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery import current_app
from django.urls import get_script_prefix, set_script_prefix

from .._compat.celery import SKIP_CHECKS, active_apps, made_tasks, make_tasks
from .._values.processes import OfProcess
from .task import LockedTask

_loading = OfProcess(threading.RLock)


def load_tasks() -> None:
    """Load the tasks of all apps. Raises what the import of a module raises, and the error of a
    task that cannot be made."""
    for _, _, error in not_loaded(_apps):
        raise error


def not_loaded(apps: Callable[[], Iterable[Any]]) -> Iterator[tuple[Any, bool, Exception]]:
    """Load the tasks of ``apps`` as their workers do. Yield each app whose tasks cannot be loaded,
    whether they were imported, and the error."""
    failed: list[Any] = []
    # All are imported before one is made: a shared task that is imported after an app was made is
    # made at once, and its error would end the import.
    for step in (_import_tasks, make_tasks):
        # The import may have made further apps.
        for app in [each for each in apps() if each not in failed]:
            try:
                step(app)
            except Exception as error:
                failed.append(app)
                yield app, step is make_tasks, error


def all_tasks() -> dict[str, Any]:
    """Return the tasks of all apps that are made, by name. Of those with one name, that of the
    current app.

    In a thread, for example of a web server, the current app is the project's only if the project
    made it the default. So the other apps are searched as well.
    """
    return dict(sorted({task.name: task for app in _apps() for task in made_tasks(app)}.items()))


def locked_tasks() -> dict[str, LockedTask]:
    """Return the locked ones of `all_tasks`."""
    return {name: task for name, task in all_tasks().items() if isinstance(task, LockedTask)}


def _apps() -> list[Any]:
    return [*active_apps(), current_app]


def _import_tasks(app: Any) -> None:
    # Without Celery's Django checks: this may be called by one of those.
    with _loading.own():
        before, prefix = os.environ.get(SKIP_CHECKS, ""), get_script_prefix()
        os.environ[SKIP_CHECKS] = "1"
        try:
            app.loader.import_default_modules()
        finally:
            set_script_prefix(prefix)  # `django.setup` overwrites the request's.
            os.environ[SKIP_CHECKS] = before  # To Celery "" is as good as none.
