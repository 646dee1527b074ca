"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

__all__ = ["TaskLockOpenTelemetryConfig"]


class TaskLockOpenTelemetryConfig(AppConfig):
    name = "django_tasklock.contrib.opentelemetry"
    label = "django_tasklock_opentelemetry"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        try:
            from .instruments import instruments
        except ImportError as error:
            raise ImproperlyConfigured(
                f"{self.name} is in INSTALLED_APPS and needs what is not installed: "
                f'pip install "django-tasklock[opentelemetry]" ({error})'
            ) from error
        instruments.connect()
