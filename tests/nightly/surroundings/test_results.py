"""django-celery-results: what it has of runs that were skipped, killed, repeated and requeued."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.nightly.surroundings.at_work import TTL_SECONDS, killed_at_work, need, skipped
from tests.nightly.surroundings.tables import install, rows
from tests.stage.fixtures import MakeStage
from tests.stage.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
FOUND = "SELECT * FROM django_celery_results_taskresult WHERE task_id = ?"


def row(stage: Stage, task_id: str) -> dict[str, Any]:
    """The one row of a call, once it is over."""

    def over() -> dict[str, Any] | None:
        found = rows(stage, FOUND, task_id)
        assert len(found) <= 1
        return found[0] if found and found[0]["status"] in ("SUCCESS", "FAILURE") else None

    found = until(over, f"the result of {task_id}", every=0.05)
    assert found is not None
    return found


def value(stage: Stage, task_id: str) -> Any:
    """What a call returned, as the row has it."""
    found = row(stage, task_id)
    assert found["status"] == "SUCCESS", found
    return json.loads(found["result"])


def test_each_call_has_one_row_that_says_how_it_ended(make_stage: MakeStage) -> None:
    need("django_celery_results")
    stage = make_stage(ttl=TTL_SECONDS)
    install(stage, "django_celery_results")
    stage.conf |= {"result_backend": "django-db", "result_extended": True}
    stage.worker(concurrency=2)
    recovered = killed_at_work(stage, wait=lambda task_id: value(stage, task_id))
    assert value(stage, recovered.double) == skipped(recovered.id, recovered.job)
    done = row(stage, recovered.id)
    assert (done["task_name"], done["worker"], done["traceback"]) == ("guarded", "w1@hard", None)

    # Killed when the lock was released, and before the result was stored
    job = stage.job()
    unstored = stage.send("killed_after_guarded", job)
    assert value(stage, unstored.id)["reason"] == "invalid_state"
    stage.assert_done_once(job)

    # Requeued while the lock is held: no result until it has run
    job, gate = stage.job(), stage.gate()
    holder = stage.send("guarded", job, [{"gate": str(gate)}])
    stage.started(job)
    requeued = stage.send("retry", job)
    until(lambda: len(stage.ledger.entries("prerun", task_id=requeued.id)) >= 2, "requeued")
    assert {found["status"] for found in rows(stage, FOUND, requeued.id)} <= {"PENDING"}
    gate.touch()
    assert value(stage, holder.id) == value(stage, requeued.id) == f"done:{job}"

    # Failed
    job = stage.job()
    failed = stage.send("guarded", job, [{"then": "raise"}])
    found = row(stage, failed.id)
    assert (found["status"], json.loads(found["result"])["exc_type"]) == ("FAILURE", "Boom")
    assert stage.row(job)[0] == "failed"
    stage.assert_settled()
