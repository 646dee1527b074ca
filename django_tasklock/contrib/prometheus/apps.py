"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ..extras import needs_extra

__all__ = ["TaskLockPrometheusConfig"]


class TaskLockPrometheusConfig(AppConfig):
    name = "django_tasklock.contrib.prometheus"
    label = "django_tasklock_prometheus"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        with needs_extra(self.name):
            from .counters import counters
        counters.connect()
