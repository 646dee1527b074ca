"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

__all__ = ["TaskLockPrometheusConfig"]


class TaskLockPrometheusConfig(AppConfig):
    name = "django_tasklock.contrib.prometheus"
    label = "django_tasklock_prometheus"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        from ...operators.exposition import sources
        from ..lock_labels import needs_extra, own_settings

        own_settings()
        with needs_extra("prometheus"):
            from .counters import of_all_processes, prometheus
        prometheus.connect()
        sources["prometheus"] = of_all_processes
