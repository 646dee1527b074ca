"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig


class TaskLockPrometheusConfig(AppConfig):
    name = "django_tasklock.contrib.prometheus"
    label = "django_tasklock_prometheus"

    def ready(self) -> None:
        from .counters import counters

        counters.connect()
