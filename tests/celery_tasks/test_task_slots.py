"""``lock_slots``: some calls at once under one name, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import LockNotAcquired, locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from tests.mailroom import Mailroom, elsewhere
from tests.steps import LONG, holder


def another_runs(permit: str, task: str, task_id: str) -> str:
    """A run on another machine."""
    token = new_token()
    record = {**owner_record(task, task_id), "boot": "another-machine", "slots": 2}
    assert isinstance(stores["default"].acquire(permit, token, LONG, record), Grant)
    return token


def two_per_tenant(job: Any, other: Any = None) -> int:
    return 3 if str(job).startswith("large") else 2


def test_as_many_run_as_the_callable_says(room: Mailroom) -> None:
    slots: list[Any] = []
    outcomes: list[Any] = []

    def work(self: Any, job: Any) -> None:
        slots.append(self.lease.slot)
        if len(slots) < 4:
            task.delay(job)
            outcomes.append(elsewhere(room, room.take()))

    task = room.task(work, lock_slots=two_per_tenant)
    first = task.delay("small")
    state, _ = room.deliver(room.take())
    assert (state, slots) == ("SUCCESS", [1, 2])
    refused, marker = outcomes[0]
    assert refused == "SUCCESS"
    assert (marker["reason"], marker["lock"]) == ("already_processing", "job:small")
    assert marker["holder"]
    slots.clear()
    task.delay("large")
    room.deliver(room.take())
    assert slots == [1, 2, 3]
    assert locks.list() == []
    assert first.id


def test_the_redelivery_of_a_run_that_goes_on_does_not_get_another_permit(room: Mailroom) -> None:
    runs: list[str] = []
    task = room.task(lambda self, job: runs.append(self.request.id), lock_slots=2, acks_late=True)
    for redelivered in (True, False):
        sent = task.delay(1)
        message = room.take()
        token = another_runs("job:1#1", task.name, sent.id)
        state, _ = room.deliver(message, redelivered=redelivered)
        assert (state, runs) == ("IGNORED", [])
        [back] = room.waiting()
        assert back.id == sent.id
        assert not locks.is_locked("job:1#2")
        # When that run is over without an end, the message runs.
        assert locks.clear("job:1#1", token)
        assert room.work_off() == [("SUCCESS", None)]
        assert runs == [sent.id]
        runs.clear()


def test_who_is_refused_may_be_retried_or_raise(room: Mailroom) -> None:
    retries = room.task(lock_slots=2, on_conflict="retry")
    raises = room.task(lock_slots=2, on_conflict="raise")
    held = [locks.acquire("job:1", slots=2) for _ in range(2)]
    retries.delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    [back] = room.waiting()
    assert back.ours["tries"] == 1
    message = raises.delay(1)
    state, error = room.deliver(room.take(message.id))
    assert state == "FAILURE"
    assert isinstance(error, LockNotAcquired)
    assert error.name == "job:1"
    assert held[0] is not None
    held[0].release()
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_a_task_that_calls_itself_goes_on_under_its_permit(room: Mailroom) -> None:
    seen: list[Any] = []

    def work(self: Any, job: Any) -> None:
        seen.append((self.lease.slot, self.lease.token))
        if len(seen) < 3:
            self(job)

    room.task(work, lock_slots=2).delay(1)
    assert room.work_off()[0][0] == "SUCCESS"
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_a_run_that_lost_its_permit_starts_over_though_another_has_that_one(
    room: Mailroom,
) -> None:
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.lease.slot)
        if len(runs) == 1:
            assert locks.clear("job:1#1")
            another_runs("job:1#1", self.name, "another message")
            assert not self.lease.extend()
            self.lease.assert_held()

    task = room.task(work, lock_slots=2, acks_late=True)
    task.delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == [1, 2]
    assert holder("job:1#1").owner.task_id == "another message"


@pytest.mark.parametrize("wrong", [0, 1001, "2", None, 2.5, True])
def test_what_the_callable_returns_is_checked(room: Mailroom, wrong: Any) -> None:
    task = room.task(lock_slots=lambda job, other=None: wrong)
    task.delay(1)
    state, error = room.deliver(room.take())
    assert state == "FAILURE"
    assert f"lock_slots of the task {task.name}" in str(error)
