"""Time limits and revoked tasks, with bodies that cannot be interrupted: cases 6, 7 and 8."""

from __future__ import annotations

import contextlib

import pytest
from celery.exceptions import TimeLimitExceeded

from django_tasklock import LockNotAcquired
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
STUCK = {"kind": "stuck", "seconds": 20}


def test_06_after_a_hard_limit_the_lock_is_free_once_the_process_is_dead(stage: Stage) -> None:
    """A waiting job runs then, not before, and at most 0.3 s past the limit."""
    limit = 1.0
    stage.pair()
    late = []
    for _ in range(2):
        job = stage.job()
        stuck = stage.send("skip", job, [STUCK], time_limit=limit)
        first = stage.started(job)
        stage.watch(first.pid)
        waiter = stage.send("waiting", job)
        with contextlib.suppress(TimeLimitExceeded):
            stuck.get(timeout=60)
        assert stuck.state == "FAILURE"
        assert waiter.get(timeout=60) == f"done:{job}"
        second = stage.started(job, 2)
        stage.until_dead(first.pid)
        assert stage.ledger.overlaps(job=job) == []
        late.append(second.at - first.at - limit)
    print("seconds past the limit until the waiting job ran:", [round(each, 3) for each in late])
    assert max(late) < 2
    assert min(late) <= 0.3
    stage.assert_settled()


def test_07_a_job_requeued_at_its_hard_limit_never_overlaps_the_dying_child(stage: Stage) -> None:
    """The broker has the message again before the child is dead; it runs exactly once more."""
    stage.worker(concurrency=2, conf={"task_acks_on_failure_or_timeout": False})
    for _ in range(2):
        job = stage.job()
        result = stage.send("guarded", job, [STUCK, {"seconds": 0.1}], time_limit=2.0)
        first = stage.started(job)
        stage.watch(first.pid)
        stage.started(job, 2)
        stage.until_dead(first.pid)
        assert stage.ledger.overlaps(job=job) == []
        stage.completed(job)
        # First Celery stored FAILURE for the limit, and a result object would remember that.
        until(lambda: stage.state(result.id) == "SUCCESS", "SUCCESS", 10)  # noqa: B023
        assert len(stage.ledger.runs(job=job)) == 2
        stage.assert_done_once(job)
    stage.assert_settled()


def test_08_a_revoked_job_keeps_its_lock_until_its_body_has_ended(stage: Stage) -> None:
    """Celery says REVOKED at once; the body goes on in C, and others are refused until its end."""
    # The others never come to the worker whose only child is at work.
    stage.worker(options=("-Q", "first"))
    stage.worker()
    job = stage.job()
    revoked = stage.send("skip", job, [{"kind": "stuck", "seconds": 5}], queue="first")
    first = stage.started(job)
    stage.watch(first.pid)
    stage.client.control.revoke(revoked.id, terminate=True)
    until(lambda: str(revoked.state) == "REVOKED", "reported as REVOKED", 6)
    refused = 0
    while not stage.ledger.entries("broke", "death"):
        with contextlib.suppress(LockNotAcquired):
            stage.send("raising", job).get(timeout=60)
            assert stage.ledger.entries("broke", "death"), "it ran beside the revoked body"
            break
        refused += 1
    assert refused > 0
    stage.until_dead(first.pid)
    until(lambda: not stage.held(), "the lock is free", 5)
    assert stage.send("raising", job).get(timeout=60) == f"done:{job}"
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def test_06_the_row_of_a_job_that_hit_its_hard_limit_has_failed(stage: Stage) -> None:
    """Also where the body was asked to exit, as at a shutdown, and reopened its row."""
    stage.worker(concurrency=2)
    jobs = {kind: stage.job() for kind in ("sleep", "stuck")}
    for limited in [
        stage.send("guarded", job, [{"kind": kind, "seconds": 4}], time_limit=1.0)
        for kind, job in jobs.items()
    ]:
        with pytest.raises(TimeLimitExceeded):
            limited.get(timeout=60)
    for job in jobs.values():
        until(lambda job=job: stage.row(job)[0] == "failed", "the row says failed", 5)  # type: ignore[misc]
    until(lambda: not stage.held(), "the lock is free", 5)
