"""Loads the modules that define the tasks of the project's Celery apps."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from django.urls import get_script_prefix, set_script_prefix

from .._compat.celery import (
    SKIP_CHECKS,
    active_apps,
    current_app,
    import_task_modules,
    is_of_project,
    make_tasks,
)

__all__ = ["load_app", "load_tasks", "project_apps", "task_apps"]

_loading = threading.RLock()


def task_apps() -> list[Any]:
    """Return all apps, the current app first.

    In a thread, for example of a web server, the current app is the project's only if the project
    made it the default. So the other apps are searched as well.
    """
    current = current_app()
    return [current, *(app for app in active_apps() if app is not current)]


def project_apps() -> list[Any]:
    """Return the apps that the project made, without the one that Celery makes by default."""
    return [app for app in active_apps() if is_of_project(app)]


def load_app(app: Any) -> list[Exception]:
    """Import the modules that define an app's tasks and make the tasks, as a worker does.

    Returns an error for each task that cannot be made; all other tasks are made. Raises what the
    import of a module raises.
    """
    with _without_checks():
        import_task_modules(app)
    return make_tasks(app)


def load_tasks() -> None:
    """Load all apps. Raises the first of the errors after all other tasks are made."""
    errors = [error for app in task_apps() for error in load_app(app)]
    if errors:
        raise errors[0]


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Import without Celery's Django checks: this may be called by one of those checks."""
    with _loading:
        before, prefix = os.environ.get(SKIP_CHECKS), get_script_prefix()
        os.environ[SKIP_CHECKS] = "1"
        try:
            yield
        finally:
            set_script_prefix(prefix)  # `django.setup` overwrites the request's.
            if before is None:
                del os.environ[SKIP_CHECKS]
            else:
                os.environ[SKIP_CHECKS] = before
