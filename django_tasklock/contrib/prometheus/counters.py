"""The counters and histograms, in the default registry of prometheus_client."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from ..measures import COUNTERS, HISTOGRAMS, SECONDS, Measures, Metric

__all__ = ["counters"]


class Counters(Measures):
    """Keeps the numbers of this process; in prometheus_client's multiprocess mode, in files that
    the processes of a host share."""

    def __init__(self) -> None:
        super().__init__()
        self._counters = {
            metric: Counter(f"tasklock_{metric.name}_total", metric.text, metric.labels)
            for metric in COUNTERS
        }
        self._histograms = {
            metric: Histogram(
                f"tasklock_{metric.name}_seconds", metric.text, metric.labels, buckets=SECONDS
            )
            for metric in HISTOGRAMS
        }

    def count(self, metric: Metric, *labels: str) -> None:
        self._counters[metric].labels(*labels).inc()

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        self._histograms[metric].labels(*labels).observe(seconds)


counters = Counters()
"""those of this process: a registry takes a metric once"""
