"""The counters and histograms, by OpenTelemetry's API: the project's SDK exports them."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from ..measures import SECONDS, Add, Measures, Metric

try:
    from opentelemetry.metrics import get_meter
except ImportError as error:
    raise ImproperlyConfigured(f'{error}: pip install "django-tasklock[opentelemetry]"') from error

# Of the SDK that is set up by then, or later.
meter = get_meter("django_tasklock")


def _counter(metric: Metric) -> Add:
    counter = meter.create_counter(f"tasklock.{metric.name}", description=metric.text)
    return _labelled(counter.add, metric)


def _histogram(metric: Metric) -> Add:
    name, text = f"tasklock.{metric.name}", metric.text
    histogram = meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=SECONDS)
    return _labelled(histogram.record, metric)


def _labelled(add: Add, metric: Metric) -> Add:
    return lambda value, *labels: add(value, dict(zip(metric.labels, labels, strict=True)))


# They pass the numbers on to the instruments of one meter.
instruments = Measures(_counter, _histogram)
