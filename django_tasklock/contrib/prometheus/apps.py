"""The Django app: it connects the receivers that count."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

__all__ = ["TaskLockPrometheusConfig"]


class TaskLockPrometheusConfig(AppConfig):
    name = "django_tasklock.contrib.prometheus"
    label = "django_tasklock_prometheus"
    verbose_name = _("Task locks")

    def ready(self) -> None:
        try:
            from .counters import counters
        except ImportError as error:
            raise ImproperlyConfigured(
                f"{self.name} is in INSTALLED_APPS and needs what is not installed: "
                f'pip install "django-tasklock[prometheus]" ({error})'
            ) from error
        counters.connect()
