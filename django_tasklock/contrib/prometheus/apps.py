"""The Django app: the counters and histograms, in the default registry of prometheus_client."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from ..measures import HISTOGRAMS, SECONDS, Add, Measures, Metric

try:
    from prometheus_client import Counter, Histogram
except ImportError as error:
    raise ImproperlyConfigured(f'{error}: pip install "django-tasklock[prometheus]"') from error


def _made(metric: Metric) -> Add:
    said = metric.text, metric.labels
    if metric in HISTOGRAMS:
        histogram = Histogram(f"tasklock_{metric.name}_seconds", *said, buckets=SECONDS)
        return lambda seconds, *labels: histogram.labels(*labels).observe(seconds)
    counter = Counter(f"tasklock_{metric.name}_total", *said)
    return lambda value, *labels: counter.labels(*labels).inc(value)


# Those of this process: a registry takes a metric once. In prometheus_client's multiprocess mode
# the numbers are in files that the processes of a host share.
counters = Measures(_made)


class TaskLockPrometheusConfig(AppConfig):
    name = "django_tasklock.contrib.prometheus"
    label = "django_tasklock_prometheus"

    def ready(self) -> None:
        counters.connect()
