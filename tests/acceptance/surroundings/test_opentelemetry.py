"""The spans of opentelemetry-instrumentation-celery, and those of waits beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.surroundings.recovery import need, recovers
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_runs_and_waits_have_spans_of_one_trace(stage: Stage, tmp_path: Path) -> None:
    need("opentelemetry.instrumentation.celery")
    file = tmp_path / "spans"
    file.touch()

    def spans() -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()]

    stage.environment["HARD_CASES_APPS"] = "django_tasklock.contrib.opentelemetry"
    stage.worker(
        concurrency=2,
        conf={"imports": ["tests.acceptance.surroundings.with_opentelemetry"]},
        environment={"SPANS": str(file)},
    )
    result, double = recovers(stage)
    runs = until(lambda: [s for s in spans() if s["name"] == "run/guarded"][1:], "both runs")
    assert runs
    ids = {span["attributes"]["messaging.message.id"] for span in spans() if "run/" in span["name"]}
    assert ids == {result.id, double.id}

    # One that waits for its lock has a span of the wait inside the span of its run.
    job, gate = stage.job(), stage.gate()
    holder = stage.send("waiting", job, [{"gate": str(gate)}])
    stage.started(job)
    waiter = stage.send("waiting", job)
    until(lambda: stage.redis.keys(f"*:lock:job:{job} queue"), "that it waits")
    gate.touch()
    assert [each.get(timeout=60) for each in (holder, waiter)] == [f"done:{job}"] * 2
    ours = until(lambda: [s for s in spans() if "wait" in s["name"]], "the span of the wait")[0]
    parent = until(
        lambda: [
            s for s in spans()
            if s["name"] == "run/waiting" and s["context"]["span_id"] == ours["parent_id"]
        ],
        "the run that has waited",
    )[0]  # fmt: skip
    assert parent["attributes"]["messaging.message.id"] == waiter.id
    stage.assert_settled()
