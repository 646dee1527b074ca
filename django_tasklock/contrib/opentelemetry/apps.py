"""The Django app: counters and histograms by OpenTelemetry's API, which the project exports."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from ..measures import COUNTERS, SECONDS, Add, Measures, Metric

try:
    from opentelemetry.metrics import get_meter
except ImportError as error:
    raise ImproperlyConfigured(f'{error}: pip install "django-tasklock[opentelemetry]"') from error

# Of the SDK that is set up by then, or later.
meter = get_meter("django_tasklock")


def _made(metric: Metric) -> Add:
    said = f"tasklock.{metric.name}", metric.unit, metric.text
    if metric in COUNTERS:
        add: Add = meter.create_counter(*said).add
    else:
        add = meter.create_histogram(*said, explicit_bucket_boundaries_advisory=SECONDS).record
    return lambda value, *labels: add(value, dict(zip(metric.labels, labels, strict=True)))


# They pass the numbers on to the instruments of one meter.
instruments = Measures(_made)


class TaskLockOpenTelemetryConfig(AppConfig):
    name = "django_tasklock.contrib.opentelemetry"
    label = "django_tasklock_opentelemetry"

    def ready(self) -> None:
        instruments.connect()
