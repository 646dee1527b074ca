"""Pool children and main processes that are killed, and what is held against their messages: cases
1, 2, 10, 11, 17, 21, 22, 24, 33, 38 and 44."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult

from django_tasklock import TooManyAttempts
from tests.nights import by_day
from tests.stage.fixtures import need_pool, on_all_pools, on_both_brokers, shared_on_both_brokers
from tests.stage.ledger import Entry
from tests.stage.stage import Stage
from tests.stage.workers import Worker, elsewhere, elsewhere_works, kill
from tests.waiting import until

pytestmark = pytest.mark.slow
LONG = {"seconds": 60.0}
KILL = {"then": "kill"}
SHORT_TTL_SECONDS = 6.0


@shared_on_both_brokers
@pytest.mark.parametrize("task", by_day("guarded", "skip"))
def test_01_a_job_whose_child_is_killed_runs_again_at_once_and_completes_once(
    shared: Stage, task: str
) -> None:
    # Given a job at work, with a guard or with a lock alone, and without a stored result
    job, _, first = shared.begin(task, LONG, {}, ignore_result=task == "skip")
    if task == "guarded":
        assert shared.row(job) == ("running", first.fence)

    # I expect the same message to run again in a small part of the lease of 30 s
    killed = shared.kill(first.pid)
    again = shared.started(job, 2)
    assert again.at - killed < 3
    assert (again.task_id, again.retries) == (first.task_id, 0)

    # And to claim the row again by its fence (case 17), which said "running"
    assert again.fence > first.fence

    # And to complete once
    shared.completed(job)
    shared.assert_settled()
    shared.assert_completed(job)
    if task == "guarded":
        assert shared.row(job) == ("done", again.fence)


@on_both_brokers
@pytest.mark.stage(visibility=2)
def test_02_after_the_main_process_is_killed_a_new_worker_here_takes_over_at_once(
    stage: Stage,
) -> None:
    """The redelivered message finds a dead owner and runs, though the lease has 30 s to go."""
    worker = stage.worker()
    job, result, _ = stage.begin("guarded", LONG, {})
    stage.kill(worker.pid)
    stage.worker()
    again = stage.started(job, 2)
    received = stage.ledger.entries("received", task_id=result.id)[-1].at
    assert again.at - received < 1.5
    stage.assert_well(job, result)


@pytest.mark.parametrize("where", ["another machine", "takeover off"])
@pytest.mark.nightly
@pytest.mark.stage("rabbitmq", ttl=SHORT_TTL_SECONDS)
def test_02_who_cannot_tell_whether_the_owner_lives_waits_for_the_end_of_its_lease(
    stage: Stage, tmp_path: Path, where: str
) -> None:
    """On another machine, or with ``TAKEOVER`` off (case 24)."""
    if where == "another machine" and not elsewhere_works(tmp_path):
        pytest.skip("this system does not allow a new process namespace")
    if where == "takeover off":
        stage.environment["STAGE_TAKEOVER"] = "off"
    worker = stage.worker()
    job, result, first = stage.begin("guarded", LONG, {})
    stage.worker(prefix=elsewhere(tmp_path) if where == "another machine" else ())
    killed = stage.kill(worker.pid)
    stage.until_dead(first.pid)
    assert 2 < stage.started(job, 2).at - killed < SHORT_TTL_SECONDS + 3
    stage.assert_well(job, result)


@pytest.mark.parametrize("task", by_day("killed_after", "killed_after_guarded"))
def test_10_a_job_killed_after_the_release_still_ends_as_a_success(
    shared: Stage, task: str
) -> None:
    """Its result was not stored, so its message comes again: the chain goes on, once."""
    job = shared.job()
    last = (shared.sig(task, job) | shared.sig("collect", f"{task} {job}")).apply_async()
    value = last.get(timeout=60)
    assert last.parent.get(timeout=5) == value is not None
    assert last.parent.state == "SUCCESS"
    shared.assert_settled()
    assert len(shared.ledger.entries("collected", label=f"{task} {job}")) == 1
    assert len(shared.ledger.entries("killed after release", task_id=last.parent.id)) == 1
    if task == "killed_after":
        assert value == f"done:{job}"
        shared.assert_completed(job, 2, runs=2)
    else:
        shared.assert_done_once(job)


@on_both_brokers
@pytest.mark.parametrize("task", by_day("guarded", "skip"))
@pytest.mark.stage(ttl=SHORT_TTL_SECONDS)
def test_24_the_lease_of_a_killed_child_stands_until_its_end(stage: Stage, task: str) -> None:
    """``TAKEOVER`` is off, for work that leaves subprocesses behind. One lives on; the job runs
    again when the lease is over, and no later call does before that."""
    stage.environment["STAGE_TAKEOVER"] = "off"
    stage.worker()
    left_behind = {"seconds": 2 * SHORT_TTL_SECONDS, "kind": "child"}
    job, result, first = stage.begin(task, left_behind, {"seconds": 0.1})
    killed = stage.kill(first.pid)
    assert stage.held() == [f"job:{job}"]
    other = stage.send(task, job).get(timeout=SHORT_TTL_SECONDS)
    assert (other["reason"], other["holder"]) == ("already_processing", result.id)
    # A lease is renewed after a third: half of it is left at any moment.
    assert SHORT_TTL_SECONDS / 2 < stage.started(job, 2).at - killed < SHORT_TTL_SECONDS + 4
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    assert stage.ledger.completions(job=job) == 1


@pytest.mark.parametrize("task", by_day("own_before", "own_after"))
def test_38_an_own_request_class_and_ours_both_do_their_part(stage: Stage, task: str) -> None:
    """The main process clears the lock of a child that died, and notes a hard limit twice."""
    # A hard limit in case that a killed child's message is not noticed.
    stage.worker(concurrency=3, conf={"task_time_limit": 20})
    again, gone, limited = stage.job(), stage.job(), stage.job()
    runs_again = stage.send(task, again, [KILL, {}])
    # Nobody takes this lock over: its message does not come back, and no other one comes.
    lost = stage.send(f"{task}_dropped", gone, [KILL])
    stuck = stage.send(task, limited, [{"kind": "stuck", "seconds": 20}], time_limit=1.0)
    with pytest.raises(WorkerLostError):
        lost.get(timeout=60)
    until(lambda: f"job:{gone}" not in stage.held(), "the lock is free", 10)
    with pytest.raises(TimeLimitExceeded):
        stuck.get(timeout=60)
    until(lambda: stage.ledger.entries("own on_timeout", task_id=stuck.id), "theirs", 10)
    until(lambda: stage.row(limited)[0] == "failed", "the row says failed", 10)
    stage.assert_well(again, runs_again)


# ------------------------------------------------------------------------------ held against them


def play(
    stage: Stage, result: AsyncResult[Any], ended: Callable[[Worker], object], pool: str = "prefork"
) -> None:
    """Have a worker until the run has ended in this way, or the job is given up. It may be killed
    before anybody sees that it is ready."""
    worker = stage.worker(pool=pool, wait=False)
    until(
        lambda: result.state == "FAILURE" or ended(worker),
        "the run has ended, or the job is given up",
        90,
    )
    worker.end()


def assert_given_up(stage: Stage, job: int, result: AsyncResult[Any], *, runs: int) -> None:
    """It has failed after so many runs, and the lock is left to others."""

    def outcome() -> object:  # A result object would remember an earlier failure.
        return stage.client.AsyncResult(result.id).result

    until(lambda: isinstance(outcome(), TooManyAttempts), "it is given up")
    assert len(stage.ledger.runs(job=job)) == runs
    assert stage.row(job)[0] == "failed"
    until(lambda: not stage.held(), "the lock is free", 10)


@pytest.mark.parametrize("then", by_day("kill", "kill main"))
@pytest.mark.stage("rabbitmq")
def test_11_a_job_that_always_kills_its_process_is_given_up(stage: Stage, then: str) -> None:
    # Given a job that kills its child each time, or the main process of its worker, of which
    # a supervisor starts another one
    job = stage.job()
    result = stage.send("poison", job, [{"then": then}])
    for _ in range(4 if then == "kill main" else 1):
        play(stage, result, lambda worker: not worker.running)

    # I expect it to fail after lock_max_attempts=3 runs
    assert_given_up(stage, job, result, runs=3)

    # And its message to be gone: the count has survived the main process
    stage.worker()
    stage.assert_settled()


@shared_on_both_brokers
def test_21_a_job_that_rejects_itself_runs_again_each_time(shared: Stage) -> None:
    """Six times back to the queue, though one death would be enough to give it up."""
    job = shared.job()
    result = shared.send("once", job, [*[{"then": "reject"}] * 6, {}])
    shared.assert_well(job, result, runs=7)


@on_both_brokers
@pytest.mark.stage(visibility=2)
def test_22_a_job_that_a_killed_worker_had_only_prefetched_runs(stage: Stage) -> None:
    """It was never begun: the death of that worker is not its doing."""
    worker = stage.worker(conf={"worker_prefetch_multiplier": 4})
    first, prefetched = stage.begin("guarded", LONG, {}), stage.job()
    result = stage.send("once", prefetched)
    stage.deliveries(result.id, 1)
    stage.kill(worker.pid)
    assert stage.ledger.runs(job=prefetched) == []
    stage.worker()
    stage.assert_well(prefetched, result)
    stage.assert_done_once(first.job)


@on_all_pools
@pytest.mark.stage("rabbitmq")
def test_33_a_job_that_leaves_by_sys_exit_is_given_up(stage: Stage, pool: str) -> None:
    """As one that kills its child, and no worker ends by it."""
    need_pool(pool)
    worker, job = stage.worker(pool=pool), stage.job()
    result = stage.send("once", job, [{"then": "exit"}])
    assert_given_up(stage, job, result, runs=1)
    assert worker.running


@on_both_brokers
def test_44_a_job_whose_child_gets_sigterm_each_time_is_given_up(stage: Stage) -> None:
    """At a hard limit after which its message comes again, billiard sends SIGTERM before SIGKILL;
    and so does earlyoom. It looks like a shutdown to the run, and is none."""
    stage.worker(concurrency=2, conf={"task_acks_on_failure_or_timeout": False})
    limited, struck = stage.job(), stage.job()
    results = {
        limited: stage.send("poison", limited, [LONG], time_limit=1.0),
        struck: stage.send("poison", struck, [LONG]),
    }

    def runs_or_failure(job: int, runs: int) -> None:
        until(
            lambda: stage.row(job)[0] == "failed" or len(stage.ledger.runs(job=job)) > runs,
            "another run, or none any more",
        )

    for number in range(4):  # One more than it may die.
        runs_or_failure(struck, number)
        for run in stage.ledger.runs(job=struck)[number:]:
            os.kill(run.start.pid, signal.SIGTERM)
            stage.until_dead(run.start.pid)
    for job, result in results.items():
        runs_or_failure(job, 3)
        assert_given_up(stage, job, result, runs=3)
    stage.assert_settled()


def to_the_group(stage: Stage, worker: Worker, run: Entry) -> None:
    """As systemd stops a service: SIGTERM to each of its processes."""
    os.killpg(worker.pid, signal.SIGTERM)


def sigkill_in_a_warm_shutdown(stage: Stage, worker: Worker, run: Entry) -> None:
    """The child has not ended in time."""
    worker.send(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.text(), "it has begun", 10)
    kill(run.pid)


def group_killed_in_a_warm_shutdown(stage: Stage, worker: Worker, run: Entry) -> None:
    """As systemd, Docker and Kubernetes end what has not ended in time."""

    def counted() -> list[bytes]:
        return [*stage.redis.scan_iter(match="*: r????????????????")]

    assert counted()
    worker.send(signal.SIGTERM)
    until(lambda: not counted(), "its start is taken back", 10)
    worker.end()


@on_both_brokers
@pytest.mark.parametrize(
    "shut_down", by_day(to_the_group, sigkill_in_a_warm_shutdown, group_killed_in_a_warm_shutdown)
)
@pytest.mark.stage(visibility=2)
def test_44_a_shutdown_of_its_worker_is_not_held_against_a_job(
    stage: Stage, shut_down: Callable[[Stage, Worker, Entry], None]
) -> None:
    """However it is shut down, and as often as one death would be too many: the job runs to its
    end. (By SIGQUIT: `test_09_a_cold_shutdown_…`.)"""
    job = stage.job()
    result = stage.send("once", job, [LONG, LONG, {}])
    for number in (1, 2):
        worker = stage.worker()
        shut_down(stage, worker, stage.started(job, number))
        until(lambda worker=worker: not worker.running, "it has stopped")  # type: ignore[misc]
    stage.worker()
    stage.assert_well(job, result, runs=3)
