"""The app for OpenTelemetry, with its real SDK: spans of waits, their links, and the numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import StoreUnavailable, lock, locks
from django_tasklock.testing import outage
from tests import needs
from tests.conftest import UseRedis
from tests.steps import Meanwhile, taken
from tests.waiting import until


class Exported:
    """What the SDK exports, in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._spans = InMemorySpanExporter()
        self.traces = TracerProvider(shutdown_on_exit=False)
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.metrics = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = self.traces.get_tracer("tests")

    def waits(self) -> list[Any]:
        """The spans of waits, the first that ended first."""
        return [span for span in self._spans.get_finished_spans() if span.name == "tasklock wait"]

    def numbers(self) -> dict[str, list[Any]]:
        """The points of each metric, by its name and unit."""
        data: Any = self._reader.get_metrics_data()
        return {
            f"{metric.name} {metric.unit}".strip(): list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, use_redis: UseRedis) -> Iterator[Exported]:
    """The app, with an SDK of this test's own, on Redis."""
    try:
        exported = Exported()
    except ImportError as error:
        needs.missing(f"OpenTelemetry's SDK is not installed: {error}")
    from opentelemetry import metrics, trace

    from django_tasklock.contrib.measures import Measuring
    from django_tasklock.contrib.opentelemetry import spans
    from django_tasklock.contrib.opentelemetry.instruments import Instruments

    monkeypatch.setattr(trace, "get_tracer", exported.traces.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", exported.metrics.get_meter)
    use_redis()
    measuring = Measuring(Instruments(), "tests")
    measuring.connect()
    spans.connect()
    yield exported
    spans.disconnect()
    measuring.disconnect()
    exported.traces.shutdown()
    exported.metrics.shutdown()


def waiter_of(name: str, exported: Exported, **options: Any) -> Meanwhile[Any]:
    """Somebody in a span of their own who waits for the lock, and is in its queue."""

    def acquire() -> Any:
        with exported.tracer.start_as_current_span("request"):
            return locks.acquire(name, ttl=60, wait=60, **options)

    waiter = Meanwhile(acquire)
    until(lambda: locks.waiters(name), "the waiter in the queue")
    return waiter


def test_a_wait_is_a_span_with_a_link_to_the_holders(exported: Exported) -> None:
    with exported.tracer.start_as_current_span("task") as task:
        lease = taken("video:1")
    waiter = waiter_of("video:1", exported)
    assert lease.release()
    assert waiter.result() is not None
    (span,) = exported.waits()
    (link,) = span.links
    there = task.get_span_context()
    assert (link.context.trace_id, link.context.span_id) == (there.trace_id, there.span_id)
    assert span.parent is not None
    assert span.context.trace_id != there.trace_id
    assert span.attributes == {
        "tasklock.lock": "other", "tasklock.store": "default", "tasklock.outcome": "acquired",
    }  # fmt: skip
    assert span.start_time <= span.end_time


def test_a_wait_for_a_permit_is_a_span_with_a_link(exported: Exported) -> None:
    with exported.tracer.start_as_current_span("task") as task:
        held = [taken("export", slots=2), taken("export", slots=2)]
    waiter = waiter_of("export", exported, slots=2)
    assert held[0].release()
    assert waiter.result() is not None
    (span,) = exported.waits()
    assert [link.context.span_id for link in span.links] == [task.get_span_context().span_id]


def test_a_wait_on_an_event_loop_is_in_the_trace_of_its_task(exported: Exported) -> None:
    lease = taken("video:1")

    async def wait() -> int:
        with exported.tracer.start_as_current_span("request") as request:
            asked = asyncio.create_task(locks.aacquire("video:1", ttl=60, wait=60))
            while not await locks.awaiters("video:1"):  # noqa: ASYNC110 - another process's news
                await asyncio.sleep(0.01)
            assert await lease.arelease()
            assert await asked is not None
            return request.get_span_context().trace_id

    trace_id = asyncio.run(wait())
    assert [span.context.trace_id for span in exported.waits()] == [trace_id]


def test_who_does_not_wait_makes_no_span(exported: Exported) -> None:
    with exported.tracer.start_as_current_span("request"):
        taken("video:1")
        assert locks.acquire("video:1") is None
        assert locks.acquire("video:2", ttl=60, wait=5) is not None
        with outage(), pytest.raises(StoreUnavailable):
            locks.acquire("video:3")
    assert exported.waits() == []


def test_a_refusal_after_a_wait_and_an_outage_are_spans(exported: Exported) -> None:
    from opentelemetry.trace import StatusCode

    taken("video:1")
    assert locks.acquire("video:1", wait=0.01) is None
    with outage(), pytest.raises(StoreUnavailable):
        locks.acquire("video:2", wait=1)
    refused, silent = exported.waits()
    assert (refused.attributes or {})["tasklock.outcome"] == "refused"
    assert refused.status.status_code is StatusCode.UNSET
    assert (silent.attributes or {})["tasklock.outcome"] == "unavailable"
    assert silent.status.status_code is StatusCode.ERROR


def test_the_record_has_a_trace_only_in_a_span_that_is_sampled(exported: Exported) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    assert taken("a").owner.trace is None
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("tests")
    with unsampled.start_as_current_span("request"):
        assert taken("b").owner.trace is None
    assert "trace" not in cache.get("lock:a")
    assert "trace" not in cache.get("lock:b")
    with exported.tracer.start_as_current_span("request") as span:
        taken("c")
    here = span.get_span_context()
    info = locks.get("c")
    assert info is not None
    assert info.owner.trace == f"{here.trace_id:032x}-{here.span_id:016x}"
    assert len(cache.get("lock:c")["trace"]) == 49


@pytest.mark.parametrize(
    "written", ["x" * 49, "0" * 32 + "-" + "0" * 16, "F" * 32 + "-" + "f" * 16, ""]
)
def test_what_strangers_write_there_is_no_link(exported: Exported, written: str) -> None:
    lease = taken("video:1")
    cache.set("lock:video:1", {**cache.get("lock:video:1"), "trace": written}, 60)
    assert locks.acquire("video:1", wait=0.01) is None
    (span,) = exported.waits()
    assert list(span.links) == []
    lease.release()


def test_the_numbers_are_those_of_prometheus(exported: Exported) -> None:
    @lock("video:{video_id}")
    def work(video_id: int) -> None:
        pass

    work(1)
    work(2)
    numbers = exported.numbers()
    (point,) = numbers["tasklock.acquires"]
    assert point.value == 2
    assert dict(point.attributes) == {
        "lock": "video:{video_id}", "store": "default", "outcome": "acquired",
    }  # fmt: skip
    assert [point.count for point in numbers["tasklock.wait s"]] == [2]
    assert [point.count for point in numbers["tasklock.hold s"]] == [2]
    assert 3600.0 in numbers["tasklock.hold s"][0].explicit_bounds
