"""What Sentry, OpenTelemetry and django-celery-results show of runs that were skipped, killed,
repeated, requeued, refused and failed; and that the locks work beside them as without."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lines import whole_lines
from tests.nightly.surroundings.at_work import (
    TOOLS,
    TTL_SECONDS,
    Ended,
    every_end,
    install,
    need,
    rows,
    skipped,
)
from tests.nightly.surroundings.envelopes import Sentry, receiving
from tests.stage.fixtures import MakeStage
from tests.stage.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
FOUND = "SELECT * FROM django_celery_results_taskresult WHERE task_id = ?"
Span = dict[str, Any]


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    stage = make_stage(ttl=TTL_SECONDS)
    stage.conf["imports"] = ["tests.stage.tasks", TOOLS]
    return stage


@pytest.fixture
def sentry(stage: Stage) -> Iterator[Sentry]:
    """A server to which the workers of the stage report, and every script that imports `TOOLS`."""
    need("sentry_sdk")
    with receiving() as server:
        stage.environment["SURROUNDINGS_SENTRY"] = server.dsn
        yield server


def test_sentry_reports_failures_and_nothing_else(stage: Stage, sentry: Sentry) -> None:
    # Given a worker that reports to Sentry, and calls that end in each way
    worker = stage.worker(concurrency=2)
    calls = every_end(stage)
    worker.stop(signal.SIGTERM)  # What a process has not sent yet it sends when it ends.

    # I expect the two that failed to be reported: no skip, requeue, redelivery or retry
    wanted = [("Boom", calls.failed), ("LockNotAcquired", calls.refused)]
    assert sorted(sentry.errors()) == wanted
    assert not [text for text in sentry.messages() if "lock" in text.lower()]

    # And each to be traced, a skip as a success
    assert [task_id for task_id in calls if not sentry.transactions(task_id)] == []
    (double,) = sentry.transactions(calls.double)
    assert double["contexts"]["trace"]["status"] == "ok"


def test_what_is_sent_under_sentry_is_unique_and_handed_on(stage: Stage, sentry: Sentry) -> None:
    """Its `apply_async` leaves ours what it needs: reservations, handed leases, direct calls."""
    stage.worker(concurrency=3)
    job, other, gate = stage.job(), stage.job(), stage.gate()
    first, second, handed, fence = stage.script(f"""
import django; django.setup()
import {TOOLS}
from django_tasklock import locks
from tests.stage.tasks import unfinished
from tests.stage.tasks import guarded
SCRIPT = [{{"gate": {str(gate)!r}}}]
print(*[unfinished.apply_async(({job}, SCRIPT)).id for _ in range(2)])
lease = locks.acquire("job:{other}", ttl=600)
print(guarded.apply_async(({other}, SCRIPT), lease=lease).id, lease.fence)
""").split()
    assert first == second
    assert stage.started(other).fence == int(fence)
    stage.started(job)
    assert stage.send("guarded", job).get(timeout=60) == skipped(first, job)
    gate.touch()
    for task_id in (first, handed):
        stage.client.AsyncResult(task_id).get(timeout=60)
    stage.assert_settled()
    stage.assert_done_once(other)
    assert sentry.errors() == []


def test_opentelemetry_has_each_run_in_the_trace_of_its_sender(
    stage: Stage, tmp_path: Path
) -> None:
    """With the package's own app for OpenTelemetry beside it."""
    need("opentelemetry.instrumentation.celery", "opentelemetry.sdk")
    exported = tmp_path / "spans"
    stage.environment |= {
        "SURROUNDINGS_SPANS": str(exported),
        "STAGE_APPS": "django_tasklock.contrib.opentelemetry",
    }
    stage.worker(concurrency=2)

    def send(name: str, *call: Any) -> str:
        """From an instrumented process."""
        return stage.script(f"""
import django; django.setup()
from {TOOLS} import instrument
instrument()
from tests.stage.tasks import app
print(app.tasks[{name!r}].apply_async({call!r}).id)
""").strip()

    def spans(name: str, task_id: str, count: int = 1) -> list[Span]:
        """Those of a call, which come when they have ended; the oldest first."""

        def found() -> list[Span]:
            every: list[Span] = [json.loads(line) for line in whole_lines(exported)]
            return [
                span for span in every
                if span["name"] == name
                and span["attributes"].get("messaging.message.id") == task_id
            ]  # fmt: skip

        until(lambda: len(found()) >= count, f"the span {name} of {task_id}")
        return found()

    calls = every_end(stage, send=send)
    # The span of the run that was killed has never ended: it is not exported.
    for task_id in (calls.recovered, calls.double):
        (run,) = spans("run/guarded", task_id)
        assert run["status"]["status_code"] == "UNSET"
        assert run["attributes"]["celery.state"] == "SUCCESS"

    (sent,), (run,) = (
        spans(f"{what}/guarded_waiting", calls.waited) for what in ("apply_async", "run")
    )
    assert run["context"]["trace_id"] == sent["context"]["trace_id"]
    assert run["parent_id"] == sent["context"]["span_id"]

    # Each run of the requeued message is a span of the sender's trace.
    first = spans("apply_async/guarded_retry", calls.requeued)[0]
    runs = len(stage.ledger.entries("prerun", task_id=calls.requeued))
    tries = spans("run/guarded_retry", calls.requeued, runs)
    assert len(tries) >= 2
    assert {span["context"]["trace_id"] for span in tries} == {first["context"]["trace_id"]}
    assert {span["status"]["status_code"] for span in tries} == {"UNSET"}


def test_django_celery_results_has_one_row_of_each_call_that_says_how_it_ended(
    stage: Stage,
) -> None:
    need("django_celery_results")
    install(stage, "django_celery_results")
    stage.conf |= {"result_backend": "django-db", "result_extended": True}
    stage.worker(concurrency=2)

    def row(task_id: str) -> dict[str, Any] | None:
        found = rows(stage, FOUND, task_id)
        assert len(found) <= 1
        return found[0] if found and found[0]["status"] in ("SUCCESS", "FAILURE") else None

    def ended(_: Stage, task_id: str) -> Ended:
        found = until(lambda: row(task_id), f"the result of {task_id}", every=0.05)
        assert found is not None
        value = json.loads(found["result"])
        return found["status"], value["exc_type"] if found["status"] == "FAILURE" else value

    def has_no_result(task_id: str) -> None:
        """As long as it has not run."""
        assert {found["status"] for found in rows(stage, FOUND, task_id)} <= {"PENDING"}

    calls = every_end(stage, ended=ended, while_requeued=has_no_result)
    done = row(calls.recovered)
    assert done is not None
    assert (done["task_name"], done["worker"], done["traceback"]) == ("guarded", "w1@hard", None)

    # Killed when the lock was released, and before the result was stored
    job = stage.job()
    state, marker = ended(stage, stage.send("killed_after_guarded", job).id)
    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
    stage.assert_done_once(job)
