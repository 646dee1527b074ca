"""The Django app: its checks and its log lines."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

__all__ = ["TaskLockConfig"]


class TaskLockConfig(AppConfig):
    name = "django_tasklock"
    verbose_name = _("Task locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, logs, work

        checks.connect()
        logs.connect()
        work.loaders.append(_load_tasks)


def _load_tasks() -> None:
    # Not before it is asked for: a site's web process need not import its tasks.
    from .celery import explaining  # noqa: F401 - makes itself known
    from .celery.works import load_tasks

    load_tasks()
