"""What the tests of the optional apps share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests import needs

Count = Callable[..., float]


@pytest.fixture
def counted() -> Iterator[Count]:
    """``counted("acquires_total", lock="video:{video_id}")``: what Prometheus's counters of that
    name have counted since the test began, with these labels and any others."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        needs.missing("prometheus_client is not installed")
    from django_tasklock.contrib.prometheus.counters import prometheus

    def total(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.name == f"tasklock_{name}" and labels.items() <= sample.labels.items()
        )

    before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            before[sample.name, frozenset(sample.labels.items())] = sample.value

    def since(name: str, **labels: str) -> float:
        old = sum(
            value
            for (known, has), value in before.items()
            if known == f"tasklock_{name}" and labels.items() <= has
        )
        return total(name, **labels) - old

    prometheus.connect()
    yield since
    prometheus.disconnect()
