"""The project's Celery apps, and the modules that define their tasks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from celery import _state
from django.urls import get_script_prefix, set_script_prefix

__all__ = ["load_app", "load_tasks", "project_apps", "task_apps"]

SKIP_CHECKS = "CELERY_SKIP_CHECKS"
_loading = threading.RLock()


def task_apps() -> list[Any]:
    """The current app first. In a thread, as of a web server, that is not the project's unless
    the project made it the default: the others are asked as well."""
    state: Any = _state
    current = state.get_current_app()
    return [current, *(app for app in state._get_active_apps() if app is not current)]


def project_apps() -> list[Any]:
    """The apps that the project made: all but the one that Celery makes where there is none."""
    state: Any = _state
    return [app for app in state._get_active_apps() if app._fixups or app.main != "default"]


def load_app(app: Any) -> None:
    """Import the modules that define an app's tasks, as a worker does. Raises what that raises."""
    with _without_checks():
        app.loader.import_default_modules()
    pending = list(app._pending)
    try:
        app.finalize()
    except BaseException:
        # Celery takes it for done. A worker, whose checks we may be, must fail over it as well.
        app.finalized = False
        app._pending.clear()
        app._pending.extend(pending)
        raise


def load_tasks() -> None:
    """`load_app`, of all apps."""
    for app in task_apps():
        load_app(app)


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Before it imports, Celery sets Django up and runs all checks, of which we may be one."""
    with _loading:
        before, prefix = os.environ.get(SKIP_CHECKS), get_script_prefix()
        os.environ[SKIP_CHECKS] = "1"
        try:
            yield
        finally:
            set_script_prefix(prefix)  # Which `django.setup` takes from a request.
            if before is None:
                del os.environ[SKIP_CHECKS]
            else:
                os.environ[SKIP_CHECKS] = before
