"""Pool children and main processes that are killed: cases 1, 2, 10, 11 and 17."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hard_cases.conftest import MakeStage, on_both_brokers
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import elsewhere_works
from tests.waiting import until

pytestmark = pytest.mark.slow
LONG_SECONDS = 60.0  # seconds a body would run if it were not killed


@on_both_brokers
def test_01_a_job_whose_child_is_killed_runs_again_at_once_and_completes_once(
    make_stage: MakeStage, broker: str
) -> None:
    """The same task id runs again, in a small part of the lease of 30 s, and completes once."""
    stage = make_stage(broker)
    stage.worker()
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}])
    first = stage.started(job)
    killed = stage.kill(first.pid)
    again = stage.started(job, 2)
    assert again.at - killed < 3
    assert (again.task_id, again.retries) == (first.task_id, 0)
    assert again.fence > first.fence
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_done_once(job)
    stage.assert_settled()


@on_both_brokers
@pytest.mark.nightly
def test_01_a_job_without_guard_or_result_survives_its_child_too(
    make_stage: MakeStage, broker: str
) -> None:
    """Nothing but the lock is needed for that: no row, and no stored result."""
    stage = make_stage(broker)
    stage.worker()
    job = stage.job()
    stage.send("skip", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}], ignore_result=True)
    killed = stage.kill(stage.started(job).pid)
    assert stage.started(job, 2).at - killed < 3
    stage.completed(job)
    stage.assert_settled()
    assert stage.ledger.completions(job=job) == 1
    assert stage.ledger.overlaps(job=job) == []


@on_both_brokers
def test_02_after_the_main_process_is_killed_a_new_worker_here_takes_over_at_once(
    make_stage: MakeStage, broker: str
) -> None:
    """The redelivered message finds a dead owner and runs, though the lease has 30 s to go."""
    stage = make_stage(broker, visibility=2)
    worker = stage.worker()
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}])
    stage.watch(stage.started(job).pid)
    stage.kill(worker.pid)
    stage.worker()
    again = stage.started(job, 2)
    received = stage.ledger.entries("received", task_id=result.id)[-1].at
    assert again.at - received < 1.5
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_done_once(job)
    stage.assert_settled()


@pytest.mark.nightly
def test_02_after_the_main_process_is_killed_another_machine_takes_over_within_a_lease(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    """Another machine cannot tell whether the owner lives, so it waits for the lease's end."""
    if not elsewhere_works(tmp_path):
        pytest.skip("this system does not allow a new process namespace")
    ttl = 6.0
    stage = make_stage("rabbitmq", ttl=ttl)
    worker = stage.worker()
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}])
    stage.watch(stage.started(job).pid)
    stage.worker(machine="elsewhere")
    killed = stage.kill(worker.pid)
    again = stage.started(job, 2)
    assert 2 < again.at - killed < ttl + 3
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_done_once(job)
    stage.assert_settled()


def test_10_a_job_killed_after_the_release_still_ends_as_a_success(stage: Stage) -> None:
    """Its result was not stored, so its message comes again: the chain goes on, once."""
    stage.worker()
    jobs = {task: stage.job() for task in ("killed_after", "killed_after_guarded")}
    for task, job in jobs.items():
        last = (stage.sig(task, job) | stage.sig("collect", task)).apply_async()
        last.get(timeout=60)
        assert last.parent.get(timeout=5) is not None
        assert last.parent.state == "SUCCESS"
        stage.assert_settled()
        assert len(stage.ledger.entries("collected", label=task)) == 1
        killed = stage.ledger.entries("killed after release", task_id=last.parent.id)
        assert len(killed) == 1
        assert stage.ledger.overlaps(job=job) == []
    bare, guarded = jobs.values()
    assert stage.ledger.entries("collected")[0].value == f"done:{bare}"
    assert len(stage.ledger.runs(job=bare)) == 2
    assert stage.row(guarded)[0] == "done"
    assert stage.ledger.completions(job=guarded) == 1


def test_11_a_job_that_always_kills_its_child_is_given_up(stage: Stage) -> None:
    """At most lock_max_attempts runs, then FAILURE, and the lock is left to others."""
    stage.worker()
    job = stage.job()
    result = stage.send("poison", job, [{"then": "kill"}])
    until(lambda: result.state == "FAILURE", "the poison is reported as FAILURE", 30)
    stage.assert_settled()
    assert len(stage.ledger.runs(job=job)) == 3
    assert stage.row(job)[0] == "failed"


@pytest.mark.nightly
def test_11_a_job_that_always_kills_its_main_process_is_given_up(make_stage: MakeStage) -> None:
    """The count survives the worker; a new one is started each time, as a supervisor does."""
    stage = make_stage("rabbitmq")
    job = stage.job()
    result = stage.send("poison", job, [{"then": "kill main"}])
    for _ in range(5):
        # It may be killed before anybody sees that it is ready.
        worker = stage.worker(wait=False)
        until(
            lambda worker=worker: not worker.running or result.state == "FAILURE",  # type: ignore[misc]
            "killed, or given up",
            90,
        )
    assert result.state == "FAILURE"
    stage.assert_settled()
    assert len(stage.ledger.runs(job=job)) == 3
    assert stage.row(job)[0] == "failed"


def test_17_a_row_claimed_by_a_killed_child_is_claimed_again_by_fence(stage: Stage) -> None:
    """The row says "running" but no process works on it: the redelivery claims it and ends it."""
    stage.worker()
    job = stage.job()
    stage.send("guarded", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}])
    first = stage.started(job)
    assert stage.row(job) == ("running", first.fence)
    stage.kill(first.pid)
    again = stage.started(job, 2)
    assert stage.row(job) == ("running", again.fence)
    stage.completed(job)
    until(lambda: stage.row(job) == ("done", again.fence), "the row is done", 10)
    stage.assert_settled()
    stage.assert_done_once(job)


def test_17_a_guard_inside_a_transaction_says_clearly_that_it_cannot_work(stage: Stage) -> None:
    """Others would not see the claim before the commit: an error that names atomic()."""
    job = stage.job()
    said = stage.script(f"""
import django; django.setup()
from django.db import transaction
from tests.hard_cases.tasks import guarded
try:
    with transaction.atomic():
        guarded({job})
except Exception as error:
    print(type(error).__name__, error)
""")
    assert "atomic" in said
    assert stage.row(job) == ("new", None)
    assert stage.ledger.runs(job=job) == []
    assert stage.held() == []
