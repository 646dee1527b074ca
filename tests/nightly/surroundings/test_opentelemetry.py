"""opentelemetry-instrumentation-celery, and the package's own app for OpenTelemetry beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lines import whole_lines
from tests.nightly.surroundings.at_work import (
    MODULES,
    TTL_SECONDS,
    killed_at_work,
    need,
)
from tests.stage.fixtures import MakeStage
from tests.waiting import until

pytestmark = pytest.mark.slow
MODULE = MODULES + "with_opentelemetry"
Span = dict[str, Any]


def span_of(spans: Callable[[], list[Span]], name: str, task_id: str, nth: int = 0) -> Span:
    """Wait for a span of this call of a task; the oldest first."""

    def found() -> list[Span]:
        same = [
            span
            for span in spans()
            if span["name"] == name and span["attributes"].get("messaging.message.id") == task_id
        ]
        return same[nth : nth + 1]

    return until(found, f"the span {name} of {task_id}")[0]


def test_runs_are_spans_of_one_trace(make_stage: MakeStage, tmp_path: Path) -> None:
    need("opentelemetry.instrumentation.celery", "opentelemetry.sdk")
    stage = make_stage(ttl=TTL_SECONDS)
    stage.conf["imports"] = [MODULE]
    exported = tmp_path / "spans"
    stage.environment |= {
        "SURROUNDINGS_SPANS": str(exported),
        "STAGE_APPS": "django_tasklock.contrib.opentelemetry",
    }
    stage.worker(concurrency=2)

    def spans() -> list[Span]:
        return [json.loads(line) for line in whole_lines(exported)]

    recovered = killed_at_work(stage)
    run = span_of(spans, "run/guarded", recovered.id)
    double = span_of(spans, "run/guarded", recovered.double)
    assert run["status"]["status_code"] == double["status"]["status_code"] == "UNSET"
    assert (run["attributes"]["celery.state"], double["attributes"]["celery.state"]) == (
        "SUCCESS",
        "SUCCESS",
    )
    # The span of the run that was killed has never ended: it is not exported.
    runs = [span for span in spans() if span["name"] == "run/guarded"]
    assert len(runs) == 2

    # A call that waits, and one that is requeued, both sent by an instrumented process.
    job, gate = stage.job(), stage.gate()
    source = f"""
import django; django.setup()
from {MODULE} import instrument
instrument()
from tests.stage.tasks import guarded, guarded_waiting, guarded_retry
print(TASK.apply_async(({job}, [{{"gate": {str(gate)!r}}}])).id)
"""
    holder = stage.script(source.replace("TASK", "guarded")).strip()
    stage.started(job)
    requeued = stage.script(source.replace("TASK", "guarded_retry")).strip()
    until(lambda: len(stage.ledger.entries("prerun", task_id=requeued)) >= 2, "requeued")
    waiter = stage.script(source.replace("TASK", "guarded_waiting")).strip()
    until(lambda: stage.ledger.entries("prerun", task_id=waiter), "the waiter")
    until(lambda: stage.redis.keys(f"*:job:{job} queue"), "the wait queue")
    gate.touch()
    for task_id in (holder, waiter, requeued):
        stage.client.AsyncResult(task_id).get(timeout=60)
    stage.assert_settled()
    stage.assert_done_once(job)

    sent = span_of(spans, "apply_async/guarded_waiting", waiter)
    run = span_of(spans, "run/guarded_waiting", waiter)
    assert (run["context"]["trace_id"], run["parent_id"]) == (
        sent["context"]["trace_id"],
        sent["context"]["span_id"],
    )

    # Each run of the requeued message is a span of the sender's trace.
    first = span_of(spans, "apply_async/guarded_retry", requeued)
    tries = [
        span_of(spans, "run/guarded_retry", requeued, nth)
        for nth in range(len(stage.ledger.entries("prerun", task_id=requeued)))
    ]
    assert len(tries) >= 2
    assert {span["context"]["trace_id"] for span in tries} == {first["context"]["trace_id"]}
    assert {span["status"]["status_code"] for span in tries} == {"UNSET"}
