"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig


class TaskLockOpenTelemetryConfig(AppConfig):
    name = "django_tasklock.contrib.opentelemetry"
    label = "django_tasklock_opentelemetry"

    def ready(self) -> None:
        from .instruments import instruments

        instruments.connect()
