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


class Instruments(Measures):
    """Passes the numbers on to the instruments of one meter."""

    def counter(self, metric: Metric) -> Add:
        counter = meter.create_counter(f"tasklock.{metric.name}", description=metric.text)
        return lambda value, *labels: counter.add(value, metric.labelled(labels))

    def histogram(self, metric: Metric) -> Add:
        histogram = meter.create_histogram(
            f"tasklock.{metric.name}",
            unit="s",
            description=metric.text,
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        return lambda seconds, *labels: histogram.record(seconds, metric.labelled(labels))


instruments = Instruments()
