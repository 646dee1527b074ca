"""on_conflict="run": a call that finds its lock held runs all the same, and only reports it."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest
from celery.exceptions import Reject, WorkerLostError

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.guards import StatusGuard
from django_tasklock.operators.doctor import diagnose
from django_tasklock.signals import lock_contended
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.mailroom import Mailroom, elsewhere, ends, killed_in_body
from tests.steps import LONG, Meanwhile, holder

GUARD = StatusGuard(
    "app.Job", pk="job", source="queued", to="working", done="done", failed="failed",
    fence_field="lock_fence",
)  # fmt: skip


def test_it_runs_and_leaves_the_holders_lease_alone(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    refused: list[Any] = []

    def work(self: Any, job: Any) -> str:
        self.lease.assert_held()
        lease = self.lease
        seen.append((lease.name, lease.held, lease.fence, lease.token, lease.remaining))
        return "ran"

    def contended(**sent: Any) -> None:
        refused.append((sent["name"], sent["holder"].token))

    task = room.task(work, on_conflict="run", acks_late=True)
    lock_contended.connect(contended)
    try:
        with lock("job:1", ttl=LONG) as lease, caplog.at_level(logging.WARNING):
            before = holder("job:1")
            sent = task.delay(1)
            assert room.deliver(room.take()) == ("SUCCESS", "ran")
            after = holder("job:1")
            assert (after.token, after.acquired_at) == (before.token, before.acquired_at)
            assert lease.held
            assert [info.name for info in locks.list()] == ["job:1"]
    finally:
        lock_contended.disconnect(contended)
    assert seen == [("job:1", False, None, "", 0.0)]
    assert refused == [("job:1", lease.token)]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    said = record.getMessage()
    assert "lock job:1 in store default is held by" in said
    assert str(before.owner) in said
    assert f"{task.name}[{sent.id}] runs all the same" in said


def test_with_a_free_lock_it_is_a_locked_run(room: Mailroom) -> None:
    task = room.task(lambda self, job: holder("job:1").token == self.lease.token, on_conflict="run")
    task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", True)
    assert not locks.is_locked("job:1")


def test_it_runs_beside_an_operators_hold(room: Mailroom, caplog: pytest.LogCaptureFixture) -> None:
    """A direct call and an eager one run as well."""
    task = room.task(on_conflict="run")
    assert locks.hold("job:1", LONG, "alice", "a migration") is not None
    task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", "done:1")
    assert f"operator alice (a migration): {task.name}[" in caplog.text
    assert task(1) == task.apply((1,)).get() == "done:1"
    assert locks.clear("job:1")


def test_a_redelivery_after_its_run_is_dropped(room: Mailroom) -> None:
    runs: list[int] = []
    task = room.task(lambda self, job: runs.append(job), on_conflict="run", acks_late=True)
    task.delay(1)
    message = room.take()
    with lock("job:1", ttl=LONG):
        assert room.deliver(message)[0] == "SUCCESS"
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert runs == [1]


def test_a_rejected_message_runs_again(room: Mailroom) -> None:
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) < 4:
            raise Reject("again", requeue=True)

    task = room.task(work, on_conflict="run", acks_late=True, lock_max_attempts=1)
    task.delay(1)
    message = room.take()
    with lock("job:1", ttl=LONG):
        states = [room.deliver(message, redelivered=number > 0)[0] for number in range(4)]
    assert states == ["REJECTED", "REJECTED", "REJECTED", "SUCCESS"]


@pytest.mark.django_db(transaction=True)
class TestGuard:
    def test_it_claims_and_finishes_its_row(self, room: Mailroom) -> None:
        job = Job.objects.create(status="queued")
        seen: list[str] = []

        def work(self: Any, job: Any) -> None:
            seen.append(Job.objects.get(pk=job).status)

        task = room.task(work, on_conflict="run", guard=GUARD)
        task.delay(job.pk)
        with lock(f"job:{job.pk}", ttl=LONG):
            assert room.deliver(room.take())[0] == "SUCCESS"
        job.refresh_from_db()
        assert (seen, job.status) == (["working"], "done")

    def test_a_row_that_a_run_works_on_is_left_to_it(
        self, room: Mailroom, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = Job.objects.create(status="queued")
        runs: list[str] = []
        outcomes: list[Any] = []

        def work(self: Any, job: Any) -> None:
            runs.append(self.request.id)
            task.delay(job)
            outcomes.append(elsewhere(room, room.take()))
            outcomes.append(Meanwhile(lambda: task(job)).result())

        task = room.task(work, on_conflict="run", guard=GUARD, acks_late=True)
        first = task.delay(job.pk).id
        assert room.deliver(room.take())[0] == "SUCCESS"
        (state, _), direct = outcomes
        # The row may be that of a dead run: the message waits for the lock.
        assert state == "IGNORED"
        assert (direct["reason"], direct["holder"]) == ("already_processing", first)
        ((state, marker),) = room.work_off()
        assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
        assert runs == [first]
        assert "runs all the same" not in caplog.text
        job.refresh_from_db()
        assert job.status == "done"

    @pytest.mark.parametrize("why", ["on_conflict", "on_outage"])
    def test_47_its_row_is_its_own_though_the_lock_is_free_again(
        self, room: Mailroom, why: str
    ) -> None:
        """Who has the lock then leaves it, also a message that was delivered before, or its own
        that was not; and the doctor does not call it lost."""
        job, runs = Job.objects.create(), []
        trouble = ExitStack()

        def work(self: Any, job: Any) -> str:
            runs.append(self.request.id)
            if len(runs) == 1:
                trouble.close()
                for redelivered in (False, True):
                    task.delay(job)
                    state, marker = elsewhere(room, room.take(), redelivered=redelivered)
                    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
                if why == "on_outage":  # There is no note of its start.
                    state, marker = elsewhere(room, message)
                    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
                (problem,) = diagnose()
                said = problem.as_json()
                assert (said["kind"], said["pk"], said["serious"]) == ("unknown", str(job), False)
            return "ran"

        task = room.task(work, guard=GUARD, acks_late=True, **{why: "run"})
        task.delay(job.pk)
        message = room.take()
        with trouble:
            trouble.enter_context(
                outage() if why == "on_outage" else lock(f"job:{job.pk}", ttl=LONG)
            )
            assert room.deliver(message) == ("SUCCESS", "ran")
        job.refresh_from_db()
        assert (job.status, len(runs), [*diagnose()]) == ("done", 1, [])

    @pytest.mark.parametrize("why", ["on_conflict", "on_outage"])
    def test_47_its_row_is_its_redeliverys_after_its_death(self, room: Mailroom, why: str) -> None:
        job = Job.objects.create()
        task = room.task(guard=GUARD, acks_late=True, lock_max_attempts=2, **{why: "run"})
        task.delay(job.pk)
        message = room.take()
        with outage() if why == "on_outage" else lock(f"job:{job.pk}", ttl=LONG):
            killed_in_body(room, message)
        task.delay(job.pk)
        state, marker = room.deliver(room.take())
        assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
        assert room.deliver(message, redelivered=True) == ("SUCCESS", f"done:{job.pk}")
        job.refresh_from_db()
        assert job.status == "done"

    def test_47_its_row_is_failed_with_a_message_that_is_given_up(self, room: Mailroom) -> None:
        job = Job.objects.create()
        task = room.task(guard=GUARD, acks_late=True, lock_max_attempts=1, on_conflict="run")
        task.delay(job.pk)
        message = room.take()
        with lock(f"job:{job.pk}", ttl=LONG):
            killed_in_body(room, message)
        state, error = room.deliver(message, redelivered=True)
        assert (state, type(error)) == ("FAILURE", TooManyAttempts)
        job.refresh_from_db()
        assert job.status == "failed"

    @pytest.mark.parametrize("why", ["on_conflict", "on_outage"])
    @pytest.mark.parametrize("how", ["its child died", "its time is over", "it was revoked"])
    def test_47_its_row_is_failed_with_a_run_whose_message_does_not_come_again(
        self, room: Mailroom, why: str, how: str
    ) -> None:
        """Not with another message that is over: it says whose it is."""
        job = Job.objects.create()
        task = room.task(guard=GUARD, acks_late=how != "its child died", **{why: "run"})
        task.delay(job.pk)
        message = room.take()
        task.delay(job.pk)
        other: Any = room.received(room.take())
        other.time_start = 1.0
        with outage() if why == "on_outage" else lock(f"job:{job.pk}", ttl=LONG):
            request: Any = room.received(message)
            killed_in_body(room, message)
            other.terminate(Mock())
            job.refresh_from_db()
            assert job.status == "working"
            if how == "its child died":
                ends(request, WorkerLostError())
            elif how == "its time is over":
                request.on_timeout(soft=False, timeout=1)
            else:
                request.time_start = 1.0
                request.terminate(Mock())
        job.refresh_from_db()
        assert job.status == "failed"

    def test_a_row_that_is_done_is_skipped(self, room: Mailroom) -> None:
        job = Job.objects.create(status="done")
        task = room.task(on_conflict="run", guard=GUARD)
        task.delay(job.pk)
        with lock(f"job:{job.pk}", ttl=LONG):
            state, marker = room.deliver(room.take())
        assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
