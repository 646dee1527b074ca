"""What is held against a message, and what is not: cases 11, 21, 22, 33 and 44."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from celery.result import AsyncResult

from django_tasklock import TooManyAttempts
from tests.nights import by_day
from tests.stage.fixtures import (
    need_pool,
    on_all_pools,
    on_both_brokers,
    shared_on_both_brokers,
)
from tests.stage.ledger import Entry
from tests.stage.stage import Stage
from tests.stage.workers import Worker, kill
from tests.waiting import until

pytestmark = pytest.mark.slow
LONG = {"seconds": 60}


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
        return [*stage.redis.scan_iter(match=f"*run*{run.task_id}*")]

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
