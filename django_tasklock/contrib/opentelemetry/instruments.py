"""The counters and histograms, by OpenTelemetry's API: the project's SDK exports them."""

from __future__ import annotations

from opentelemetry import metrics

from ..measures import COUNTERS, HISTOGRAMS, SECONDS, Measures, Metric

__all__ = ["Instruments", "instruments"]


class Instruments(Measures):
    """Passes the numbers on to the instruments of one meter."""

    def __init__(self) -> None:
        super().__init__()
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
        attributes = dict(zip(metric.labels, labels, strict=True))
        self._counters[metric].add(1, attributes)

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        attributes = dict(zip(metric.labels, labels, strict=True))
        self._histograms[metric].record(seconds, attributes)


instruments = Instruments()
