"""The Django app: it connects the receivers that count and make spans."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

__all__ = ["TaskLockOpenTelemetryConfig"]


class TaskLockOpenTelemetryConfig(AppConfig):
    name = "django_tasklock.contrib.opentelemetry"
    label = "django_tasklock_opentelemetry"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        from ..lock_labels import needs_extra, own_settings

        own_settings()
        with needs_extra("opentelemetry"):
            from . import spans
            from .instruments import opentelemetry
        opentelemetry.connect()
        spans.connect()
