"""OPTIONS={"TAKEOVER": False}, for work that leaves subprocesses behind: case 24."""

from __future__ import annotations

import pytest

from tests.hard_cases.conftest import MakeStage, on_both_brokers
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import Worker
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow
TTL_SECONDS = 6.0
LEAST_SECONDS = TTL_SECONDS / 2
"""seconds of a lease that are left at any moment: it is renewed after a third"""
OFF = {"HARD_CASES_TAKEOVER": "off"}


def worker_of(stage: Stage) -> Worker:
    return stage.worker(environment=OFF)


@on_both_brokers
@pytest.mark.parametrize("task", by_day("guarded", "skip"))
def test_24_the_lease_of_a_killed_child_stands_until_its_end(
    make_stage: MakeStage, broker: str, task: str
) -> None:
    """Its subprocess lives on; the job runs again when the lease is over, and no later call does
    before that."""
    stage = make_stage(broker, ttl=TTL_SECONDS)
    worker_of(stage)
    job = stage.job()
    result = stage.send(
        task, job, [{"seconds": 2 * TTL_SECONDS, "kind": "child"}, {"seconds": 0.1}]
    )
    killed = stage.kill(stage.started(job).pid)
    assert stage.held() == [f"job:{job}"]
    other = stage.send(task, job).get(timeout=TTL_SECONDS)
    assert (other["reason"], other["holder"]) == ("already_processing", result.id)
    again = stage.started(job, 2)
    assert LEAST_SECONDS < again.at - killed < TTL_SECONDS + 4
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    assert stage.ledger.completions(job=job) == 1


@pytest.mark.nightly
def test_24_a_new_worker_waits_for_the_lease_of_a_killed_one(make_stage: MakeStage) -> None:
    stage = make_stage("rabbitmq", ttl=TTL_SECONDS)
    worker = worker_of(stage)
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": 60}, {"seconds": 0.1}])
    stage.watch(stage.started(job).pid)
    killed = stage.kill(worker.pid)
    worker_of(stage)
    assert LEAST_SECONDS < stage.started(job, 2).at - killed < TTL_SECONDS + 8
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)


def test_24_the_row_of_a_job_that_hit_its_hard_limit_has_failed(make_stage: MakeStage) -> None:
    """Though no other run may work on it before the lease's end."""
    stage = make_stage(ttl=TTL_SECONDS)
    worker_of(stage)
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": 20, "kind": "stuck"}], time_limit=1)
    until(lambda: result.state == "FAILURE", "the limit", 60)
    until(lambda: stage.row(job)[0] == "failed", "the row", 10)
    assert stage.held() == [f"job:{job}"]
    stage.assert_settled()
