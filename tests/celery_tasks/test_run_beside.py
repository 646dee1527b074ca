"""on_conflict="run": a call that finds its lock held runs all the same, and only reports it."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from celery.exceptions import Reject, WorkerLostError
from django.db import DataError, OperationalError

from django_tasklock import Lease, LeaseLost, lock, locks
from django_tasklock.exceptions import StoreUnavailable, TooManyAttempts
from django_tasklock.signals import lock_contended
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import FENCES, job_guard, raising, status
from tests.inside import diagnose
from tests.mailroom import Mailroom, Runs, elsewhere, ends, killed_in_body
from tests.steps import LONG, Meanwhile, holder, sent

# What a lease has for the engine alone.
OF_ENGINE = {
    "alone", "base_name", "cool", "end_block", "ended_well", "give_up", "is_here", "outlives",
    "renewed",
}  # fmt: skip
WHY = pytest.mark.parametrize("why", ["on_conflict", "on_outage"])


def test_it_runs_and_leaves_the_holders_lease_alone(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a lock that is held, and a call that watches
    seen: list[Any] = []

    def work(self: Any, job: Any) -> str:
        self.lease.assert_held()
        lease = self.lease
        seen.append((lease.name, lease.held, lease.fence, lease.token, lease.remaining))
        return "ran"

    task = room.task(work, on_conflict="run", acks_late=True)
    with sent(lock_contended) as told, lock("job:1", ttl=LONG) as lease:
        before, call = holder("job:1"), task.delay(1)
        # I expect the call to run without the lock
        assert room.deliver(room.take()) == ("SUCCESS", "ran")
        assert seen == [("job:1", False, None, "", 0.0)]
        # And the holder's lease to be as before
        after = holder("job:1")
        assert (after.token, after.acquired_at) == (before.token, before.acquired_at)
        assert lease.held
        assert [info.name for info in locks.list()] == ["job:1"]
    # And a signal, and a warning that names the holder
    assert [(each["name"], each["holder"].token) for each in told] == [("job:1", lease.token)]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    said = record.getMessage()
    assert "lock job:1 in store default is held by" in said
    assert str(before.owner) in said
    assert f"{task.name}[{call.id}] runs all the same" in said


@WHY
def test_its_lease_answers_as_one_that_is_over(room: Mailroom, why: str) -> None:
    said: list[Any] = []

    def work(self: Any, job: Any) -> None:
        lease = self.lease
        missing = {name for name in dir(Lease) if name[0] != "_"}.difference(dir(lease), OF_ENGINE)
        assert not missing
        said.extend([lease.extend(60), lease.release(), lease.renew, lease.ttl, lease.slot])
        said.extend([lease.store, lease.template, lease.owner.task_id == self.request.id])
        said.extend(async_to_sync(each)() for each in (lease.aextend, lease.arelease))
        with pytest.raises(LeaseLost):
            lease.detach()
        self.apply_async([job], lease=lease)

    # Given a run without the lock
    room.task(work, **{why: "run"}).delay(1)
    with outage() if why == "on_outage" else lock("job:1", ttl=LONG):
        # I expect nothing that it asks of its lease to be missing
        assert room.deliver(room.take()) == ("SUCCESS", None)
    assert said == [False, False, False, 0.0, None, "default", "job:{job}", True, False, False]
    assert len(room.waiting()) == 1


def test_with_a_free_lock_it_is_a_locked_run(room: Mailroom) -> None:
    task = room.task(lambda self, job: holder("job:1").token == self.lease.token, on_conflict="run")
    task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", True)
    assert not locks.is_locked("job:1")


def test_a_direct_or_eager_call_runs_beside_an_operators_hold(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no queue in which they could wait for its end."""
    task = room.task(on_conflict="run")
    assert locks.hold("job:1", LONG, "alice", "a migration") is not None
    assert task(1) == task.apply((1,)).get() == "done:1"
    assert f"operator alice (a migration): {task.name}[" in caplog.text
    assert locks.clear("job:1")


@pytest.mark.parametrize("rejected", [0, 3])
def test_its_redelivery_is_dropped_unless_it_was_rejected(room: Mailroom, rejected: int) -> None:
    runs = Runs(*[raising(Reject("again", requeue=True))] * rejected, None)
    message = room.message(runs, on_conflict="run", acks_late=True, lock_max_attempts=1)
    with lock("job:1", ttl=LONG):
        for redelivery in range(rejected):
            assert room.deliver(message, redelivered=redelivery > 0)[0] == "REJECTED"
        assert room.deliver(message, redelivered=rejected > 0)[0] == "SUCCESS"
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert len(runs) == rejected + 1


# ------------------------------------------------------------------------------ rows


@FENCES
@pytest.mark.parametrize(
    ("error", "state"), [(DataError, "FAILURE"), (OperationalError, "IGNORED")]
)
def test_a_run_without_the_lock_whose_claim_fails_leaves_the_holders_row(
    room: Mailroom, row: Job, fence: str | None, error: type[Exception], state: str
) -> None:
    """In an outage of the database its message waits."""

    def work(self: Any, job: Any) -> None:
        task.delay(job)
        assert elsewhere(room, room.take())[0] == state
        assert status(row) == "working"

    guard = job_guard(fence)
    guard.claim_alone = Mock(side_effect=error)
    task = room.task(work, guard=guard, on_conflict="run")
    task.delay(row.pk)
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert status(row) == "done"
    assert len(room.waiting()) == (state == "IGNORED")


@FENCES
def test_in_an_outage_the_guard_alone_may_do(room: Mailroom, row: Job, fence: str | None) -> None:
    task = room.task(on_outage="run", guard=job_guard(fence))
    with outage():
        assert task(row.pk) == f"done:{row.pk}"
        assert status(row) == "done"
        assert task(row.pk)["reason"] == "invalid_state"
        # Whether another run lives that has the row, only the lock could say.
        Job.objects.update(status="working", lock_fence=5)
        with pytest.raises(StoreUnavailable):
            task(row.pk)
    assert (status(row), row.lock_fence) == ("working", 5)


def without_the_lock(row: Job, why: str) -> Any:
    """A call of the row cannot have its lock meanwhile."""
    return outage() if why == "on_outage" else lock(f"job:{row.pk}", ttl=LONG)


def assert_skipped(outcome: tuple[str, Any]) -> None:
    """Its row is another's."""
    state, marker = outcome
    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")


def test_a_row_that_a_run_works_on_is_left_to_it(
    room: Mailroom, row: Job, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = []

    def work(self: Any, job: Any) -> None:
        task.delay(job)
        outcomes.append(elsewhere(room, room.take()))
        outcomes.append(Meanwhile(lambda: task(job)).result())

    runs = Runs(work)
    task = room.task(runs, on_conflict="run", guard=job_guard(), acks_late=True)
    first = task.delay(row.pk).id
    assert room.deliver(room.take())[0] == "SUCCESS"
    (state, _), direct = outcomes
    # The row may be that of a dead run: the message waits for the lock.
    assert state == "IGNORED"
    assert (direct["reason"], direct["holder"]) == ("already_processing", first)
    (outcome,) = room.work_off()
    assert_skipped(outcome)
    assert runs == [first]
    assert "runs all the same" not in caplog.text
    assert status(row) == "done"


@WHY
def test_47_its_row_is_its_own_though_the_lock_is_free_again(
    room: Mailroom, row: Job, why: str
) -> None:
    """Who has the lock then leaves it, also a message that was delivered before, or its own that
    was not; and the doctor does not call it lost."""
    trouble = ExitStack()

    def work(self: Any, job: Any) -> str:
        trouble.close()
        for redelivered in (False, True):
            task.delay(job)
            assert_skipped(elsewhere(room, room.take(), redelivered=redelivered))
        if why == "on_outage":  # There is no note of its start.
            assert_skipped(elsewhere(room, message))
        (problem,) = diagnose()
        said = problem.as_json()
        assert (said["kind"], said["pk"], said["serious"]) == ("unknown", str(job), False)
        return "ran"

    runs = Runs(work, None)
    task = room.task(runs, guard=job_guard(), acks_late=True, **{why: "run"})
    task.delay(row.pk)
    message = room.take()
    with trouble:
        trouble.enter_context(without_the_lock(row, why))
        assert room.deliver(message) == ("SUCCESS", "ran")
    assert (status(row), len(runs), [*diagnose()]) == ("done", 1, [])


@WHY
def test_47_its_row_is_its_redeliverys_after_its_death(room: Mailroom, row: Job, why: str) -> None:
    task = room.task(guard=job_guard(), acks_late=True, lock_max_attempts=2, **{why: "run"})
    task.delay(row.pk)
    message = room.take()
    with without_the_lock(row, why):
        killed_in_body(room, message)
    task.delay(row.pk)
    assert_skipped(room.deliver(room.take()))
    assert room.deliver(message, redelivered=True) == ("SUCCESS", f"done:{row.pk}")
    assert status(row) == "done"


def test_47_its_row_is_failed_with_a_message_that_is_given_up(room: Mailroom, row: Job) -> None:
    options = {"acks_late": True, "lock_max_attempts": 1, "on_conflict": "run"}
    message = room.message(job=row.pk, guard=job_guard(), **options)
    with without_the_lock(row, "on_conflict"):
        killed_in_body(room, message)
    room.fails(message, TooManyAttempts, redelivered=True)
    assert status(row) == "failed"


@WHY
@pytest.mark.parametrize("how", ["its child died", "its time is over", "it was revoked"])
def test_47_its_row_is_failed_with_a_run_whose_message_does_not_come_again(
    room: Mailroom, row: Job, why: str, how: str
) -> None:
    """Not with another message that is over: it says whose it is."""
    task = room.task(guard=job_guard(), acks_late=how != "its child died", **{why: "run"})
    task.delay(row.pk)
    message = room.take()
    task.delay(row.pk)
    other: Any = room.received(room.take())
    other.time_start = 1.0
    with without_the_lock(row, why):
        request: Any = room.received(message)
        killed_in_body(room, message)
        other.terminate(Mock())
        assert status(row) == "working"
        if how == "its child died":
            ends(request, WorkerLostError())
        elif how == "its time is over":
            request.on_timeout(soft=False, timeout=1)
        else:
            request.time_start = 1.0
            request.terminate(Mock())
    assert status(row) == "failed"


def test_a_row_that_is_done_is_skipped(room: Mailroom, row: Job) -> None:
    Job.objects.update(status="done")
    room.task(on_conflict="run", guard=job_guard()).delay(row.pk)
    with without_the_lock(row, "on_conflict"):
        assert_skipped(room.deliver(room.take()))
