"""The counters and histograms, by OpenTelemetry's API: the project's SDK exports them."""

from __future__ import annotations

from opentelemetry import metrics

from ..measures import COUNTERS, HISTOGRAMS, SECONDS, Measuring, Metric

__all__ = ["opentelemetry"]


class Instruments:
    """Passes the numbers on to the instruments of one meter."""

    def __init__(self) -> None:
        # The meter of the SDK that is set up by then, or later.
        meter = metrics.get_meter("django_tasklock")
        self._counters = {
            metric: meter.create_counter(f"tasklock.{metric.name}", description=metric.text)
            for metric in COUNTERS
        }
        self._histograms = {
            metric: meter.create_histogram(
                f"tasklock.{metric.name}", unit="s", description=metric.text,
                explicit_bucket_boundaries_advisory=SECONDS,
            )
            for metric in HISTOGRAMS
        }  # fmt: skip

    def count(self, metric: Metric, *labels: str) -> None:
        """Add one to a counter."""
        self._counters[metric].add(1, dict(zip(metric.labels, labels, strict=True)))

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add a value to a histogram."""
        attributes = dict(zip(metric.labels, labels, strict=True))
        self._histograms[metric].record(seconds, attributes)


opentelemetry = Measuring(Instruments(), __name__)
