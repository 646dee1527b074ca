"""LockedTask beside what Celery and Django offer: transactions, limits, early acks, pydantic."""

from __future__ import annotations

import pytest

from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    """One for all: nothing is killed here but a child."""
    return shared_stage


def test_delay_on_commit_sends_after_the_commit_and_never_after_a_rollback(stage: Stage) -> None:
    """A locked task is a DjangoTask."""
    committed, rolled_back = stage.job(), stage.job()
    for job, commit in ((rolled_back, False), (committed, True)):
        stage.client.send_task("on_commit", ["guarded", job, commit]).get(timeout=60)
    stage.completed(committed)
    stage.assert_settled()
    stage.assert_done_once(committed)
    assert stage.row(rolled_back) == ("new", None)


def test_a_rate_limit_is_kept(stage: Stage) -> None:
    """2/s: five jobs take about two seconds, and none of them is lost."""
    jobs = [stage.job() for _ in range(5)]
    for result in [stage.send("limited", job) for job in jobs]:
        result.get(timeout=60)
    starts = [stage.started(job).at for job in jobs]
    assert max(starts) - min(starts) > 1.4
    stage.assert_settled()


def test_with_early_acks_a_killed_job_is_not_run_again_but_its_lock_is_free(stage: Stage) -> None:
    """acks_late off: Celery forgets the message, as it says; the lock does not stay behind."""
    job = stage.job()
    result = stage.send("early", job, [{"seconds": 60}, {"seconds": 0.1}])
    killed = stage.kill(stage.started(job).pid)
    until(lambda: not stage.held(), "the lock is free", 5)
    assert stage.ledger.clock() - killed < 3
    until(lambda: result.state == "FAILURE", "WorkerLostError is reported", 10)
    assert stage.send("early", job).get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)


def test_with_early_acks_a_job_runs_once_and_a_double_is_skipped(stage: Stage) -> None:
    """The ordinary case, without acks_late."""
    job, gate = stage.job(), stage.gate()
    first = stage.send("early", job, [{"gate": str(gate)}])
    stage.started(job)
    double = stage.send("early", job).get(timeout=60)
    assert (double["status"], double["holder"]) == ("skipped", first.id)
    gate.touch()
    assert first.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)


def test_a_pydantic_task_gets_and_returns_its_models(stage: Stage) -> None:
    """The lock's name comes from the plain arguments; the body gets the model."""
    sent = {"number": 7, "amount": 1.5}
    result = stage.client.send_task("modelled", [7, sent])
    assert result.get(timeout=60) == {"number": 7, "amount": 3.0}
    stage.assert_settled()
