"""The Django app: its checks and its log lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, register
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from .operators.work import Tasks

# Of the system checks.
TAG = "tasklock"


class TaskLockConfig(AppConfig):
    name = "django_tasklock"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        from .operators import logs, work

        register(_check, TAG)
        register(_check_servers, TAG, deploy=True)
        logs.connect()
        work.loaders[:] = [_load_tasks]


# What checks and tasks need is imported when Django checks, or somebody asks for the tasks. Each
# command of ``manage.py`` has the app, and most take no lock.


def _check(**_: Any) -> list[CheckMessage]:
    """Check the settings, and what the project has of views and tasks, which it loads.

    It runs with all checks, not with ``check`` alone, so that they report the same everywhere. It
    costs little more: Django's own checks import the URLconf with all views. A process that has not
    imported Celery has no tasks of it.
    """
    from .checks import check_stores, check_views
    from .tasks import check_locked

    messages = check_stores() + check_views() + check_locked()
    if "celery" in sys.modules:
        from .celery.checks import check_tasks

        messages += check_tasks()
    return messages


def _check_servers(**_: Any) -> list[CheckMessage]:
    from .checks import check_servers

    return check_servers()


def _load_tasks() -> Tasks:
    # Only when it is needed: the web process of a site need not import its tasks.
    from .operators.work import CeleryMissing

    try:
        from .celery import for_operators, loading
    except ImportError as error:
        raise CeleryMissing(error) from error
    try:
        loading.load_tasks()
    except Exception as error:  # Of the project's code, which may need what only its worker has.
        raise ImportError(f"{type(error).__name__}: {error}") from error
    return for_operators
