"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ..extras import needs_extra

__all__ = ["TaskLockOpenTelemetryConfig"]


class TaskLockOpenTelemetryConfig(AppConfig):
    name = "django_tasklock.contrib.opentelemetry"
    label = "django_tasklock_opentelemetry"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        with needs_extra(self.name):
            from .instruments import instruments
        instruments.connect()
