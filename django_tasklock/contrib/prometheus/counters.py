"""The counters and histograms, in the default registry of prometheus_client."""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ..measures import COUNTERS, HISTOGRAMS, SECONDS, Measuring, Metric

__all__ = ["FOLDER_VARIABLE", "exposed", "of_all_processes", "prometheus"]

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""the environment variable that names the folder in which the processes of a host count together"""


class Counters:
    """Keeps the numbers of this process; in multiprocess mode, in a file that others read."""

    def __init__(self) -> None:
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
        """Add one to a counter."""
        self._counters[metric].labels(*labels).inc()

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add a value to a histogram."""
        self._histograms[metric].labels(*labels).observe(seconds)


prometheus = Measuring(Counters(), __name__)


def exposed() -> bytes:
    """Return all metrics of this process in Prometheus's text format; in multiprocess mode, of all
    processes that share the folder."""
    return _merged() if os.environ.get(FOLDER_VARIABLE) else generate_latest(REGISTRY)


def of_all_processes() -> str:
    """Return the metrics of all processes that share the folder. Raises `ValueError` if none is
    set: the numbers of a command that has just started say nothing."""
    return _merged().decode()


def _merged() -> bytes:
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
