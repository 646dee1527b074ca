"""Time limits, revoked tasks, ways in which a worker or its child stops: cases 6 to 9, and 23."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from django_tasklock import LockNotAcquired
from tests.nights import by_day
from tests.stage.fixtures import need_pool, on_all_pools, on_both_brokers
from tests.stage.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
SOFT = {"worker_soft_shutdown_timeout": 1.0}
STUCK = {"kind": "stuck", "seconds": 20}
LIMIT_SECONDS = 1.0


def test_06_after_a_hard_limit_the_lock_is_free_once_the_process_is_dead(shared: Stage) -> None:
    late = []
    for _ in range(2):
        # Given a job that is stuck in C beyond its hard limit, and another one that waits
        job, stuck, first = shared.begin("skip", STUCK, time_limit=LIMIT_SECONDS)
        waiter = shared.send("waiting", job)

        # I expect the one to end by its limit, and the other to run
        with pytest.raises(TimeLimitExceeded):
            stuck.get(timeout=60)
        assert waiter.get(timeout=60) == f"done:{job}"

        # And not before the process is dead
        assert shared.ledger.overlaps(job=job) == []
        late.append(shared.started(job, 2).at - first.at - LIMIT_SECONDS)

    # And at most 0.3 s past the limit
    print("seconds past the limit until the waiting job ran:", [round(each, 3) for each in late])
    assert max(late) < 2
    assert min(late) <= 0.3
    shared.assert_settled()


@pytest.mark.parametrize("takeover", by_day("on", "off"))
@pytest.mark.stage(ttl=6)
def test_06_the_row_of_a_job_that_hit_its_hard_limit_has_failed(
    stage: Stage, takeover: str
) -> None:
    """Also where the body was asked to exit, as at a shutdown, and reopened its row; and where no
    other run may work on it before the lease's end (case 24)."""
    stage.environment["STAGE_TAKEOVER"] = takeover
    stage.worker(concurrency=2)
    jobs = {kind: stage.job() for kind in ("sleep", "stuck")}
    for limited in [
        stage.send("guarded", job, [{"kind": kind, "seconds": 4}], time_limit=LIMIT_SECONDS)
        for kind, job in jobs.items()
    ]:
        with pytest.raises(TimeLimitExceeded):
            limited.get(timeout=60)
    until(lambda: {stage.row(job)[0] for job in jobs.values()} == {"failed"}, "the rows failed", 5)
    if takeover == "off":
        assert f"job:{jobs['stuck']}" in stage.held()
    stage.assert_settled()


def test_07_a_job_requeued_at_its_hard_limit_never_overlaps_the_dying_child(stage: Stage) -> None:
    """The broker has the message again before the child is dead; it runs exactly once more."""
    stage.worker(concurrency=3, conf={"task_acks_on_failure_or_timeout": False})
    jobs = [stage.job() for _ in range(2)]
    results = [stage.send("guarded", job, [STUCK, {"seconds": 0.1}], time_limit=2) for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        stage.completed(job)
        # First Celery stored FAILURE for the limit, and a result object would remember that.
        until(lambda result=result: stage.client.AsyncResult(result.id).successful(), "success", 10)  # type: ignore[misc]
        stage.assert_done_once(job)
        assert len(stage.ledger.runs(job=job)) == 2
    stage.assert_settled()


def test_08_a_revoked_job_keeps_its_lock_until_its_body_has_ended(stage: Stage) -> None:
    """Celery says REVOKED at once; the body goes on in C, and others are refused until its end."""
    # The others never come to the worker whose only child is at work.
    busy = stage.worker(options=("-Q", "first"), wait=False)
    stage.worker()
    busy.wait_ready()
    job, revoked, first = stage.begin("skip", {"kind": "stuck", "seconds": 4}, queue="first")
    stage.client.control.revoke(revoked.id, terminate=True)
    until(lambda: str(revoked.state) == "REVOKED", "reported as REVOKED", 6)
    refused = 0
    while stage.ledger.completions(job=job) == 0:
        with contextlib.suppress(LockNotAcquired):
            stage.send("raising", job).get(timeout=60)
            continue
        refused += 1
    assert refused > 0
    stage.until_dead(first.pid)
    until(lambda: not stage.held(), "the lock is free", 5)
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def test_09_a_soft_limit_releases_the_lock_and_so_does_a_warm_shutdown(stage: Stage) -> None:
    """SoftTimeLimitExceeded is raised in the body, and the lock goes with it. At SIGTERM the body
    runs to its end; nothing is left."""
    worker = stage.worker()
    job = stage.job()
    with pytest.raises(SoftTimeLimitExceeded):
        stage.send("guarded", job, [{"seconds": 30}], soft_time_limit=1).get(timeout=60)
    stage.assert_settled()
    assert stage.row(job)[0] == "failed"

    job, result, _ = stage.begin("guarded", {"seconds": 2})
    worker.stop(signal.SIGTERM)
    assert result.state == "SUCCESS"
    stage.assert_well(job, result)


@on_both_brokers
@pytest.mark.parametrize(
    ("signals", "conf"),
    by_day(
        ([signal.SIGQUIT], {}),
        ([signal.SIGQUIT], SOFT),
        ([signal.SIGINT, signal.SIGINT], {}),
    ),
    ids=["cold", "soft", "SIGINT twice"],
)
def test_09_a_cold_shutdown_releases_the_lock_and_the_message_is_back_in_the_queue(
    stage: Stage, signals: list[int], conf: dict[str, Any]
) -> None:
    """The body is cut short; the next worker runs the job again, and it completes once, though one
    death would be too many (case 23): a shutdown is an orderly end."""
    worker = stage.worker(conf=conf)
    job, result, _ = stage.begin("once", {"seconds": 60}, {})
    worker.stop(*signals)
    assert stage.held() == []
    assert stage.queued() == 1
    stage.worker()
    stage.assert_well(job, result, runs=2)


@pytest.mark.parametrize("option", by_day("--max-tasks-per-child=1", "--max-memory-per-child=1"))
def test_09_a_child_that_is_replaced_after_its_task_leaves_no_lock(
    stage: Stage, option: str
) -> None:
    """The child exits right after its task; all jobs are done, each by a child of its own."""
    stage.worker(options=(option,))
    jobs = [stage.job() for _ in range(3)]
    for job, result in [(job, stage.send("guarded", job)) for job in jobs]:
        stage.assert_well(job, result)
    assert len({stage.started(job).pid for job in jobs}) == 3


@on_all_pools
@pytest.mark.parametrize("task", by_day("waiting", "early_waiting"))
def test_09_a_job_that_waits_for_its_lock_leaves_its_worker_free_to_shut_down(
    stage: Stage, pool: str, task: str
) -> None:
    """Its message is in the queue again before the lock is free, and the next worker runs it once.
    No start or death is counted."""
    need_pool(pool)
    stage.worker()
    with stage.busy("once") as (job, holder, _):
        waits = stage.worker(pool=pool)
        result = stage.send(task, job)
        until(lambda: stage.waiting(job), "it waits for the lock")
        waits.stop(signal.SIGTERM)
        assert not stage.waiting(job)
        assert not holder.ready()
        stage.worker()
        stage.deliveries(result.id, 2, "prerun")
    assert holder.get(timeout=60) == result.get(timeout=60) == f"done:{job}"
    assert len(stage.ledger.entries("start", task_id=result.id)) == 1
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()
