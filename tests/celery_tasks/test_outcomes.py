"""What becomes of calls that do not run: the signal `task_not_run`, and in the history each skip,
with the reason and the holder."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from django_tasklock import LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock._engine import history
from django_tasklock.celery import by
from django_tasklock.exceptions import AlreadyQueued
from django_tasklock.signals import OUTCOMES, lock_acquired, lock_released, task_not_run
from django_tasklock.tasks import locked
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, lose
from tests.mailroom import Mailroom, elsewhere
from tests.steps import LONG, Meanwhile, sent, taken

PATIENT_NO_MORE = {"on_conflict": "retry", "lock_retry_for": 0}


@pytest.fixture(autouse=True)
def _all_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens is of one second."""
    monkeypatch.setattr(history, "BATCH_SECONDS", LONG)


def outcomes(told: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each outcome with its reason; all of them are of the closed set."""
    assert all(one["reason"] in OUTCOMES[one["outcome"]] for one in told)
    return [(one["outcome"], one["reason"]) for one in told]


def skip_of(task_id: str) -> Any:
    """The one skip of a task id in the history."""
    (event,) = [event for event in locks.history(task_id=task_id) if event.kind == "skipped"]
    assert (event.owner.task_id, event.count, event.store) == (task_id, 1, "default")
    return event


@pytest.mark.parametrize(
    ("options", "while_", "state", "outcome", "reason"),
    [
        ({}, "", "SUCCESS", None, None),
        ({}, "held", "SUCCESS", "skipped", "already_processing"),
        ({}, "on hold", "SUCCESS", "skipped", "held_by_operator"),
        ({}, "cooling", "SUCCESS", "skipped", "cooling_down"),
        ({"on_conflict": "retry"}, "held", "IGNORED", "requeued", "held"),
        ({"on_conflict": "coalesce"}, "held", "IGNORED", "requeued", "held"),
        ({"on_conflict": "raise"}, "held", LockNotAcquired, "given_up", "held"),
        (PATIENT_NO_MORE, "held", LockNotAcquired, "given_up", "held"),
        ({}, "an outage", "IGNORED", "requeued", "outage"),
        ({"on_outage": "raise"}, "an outage", StoreUnavailable, "given_up", "outage"),
    ],
)
def test_of_a_message_that_does_not_run_it_is_told_why(
    room: Mailroom, options: dict[str, Any], while_: str, state: Any, outcome: Any, reason: Any
) -> None:
    task = room.task(**options)
    task.delay(1)
    message = room.take()
    if while_ == "held":
        Meanwhile(lambda: taken("job:1")).result()
    elif while_ == "on hold":
        locks.hold("job:1", LONG, "alice", "a migration")
    elif while_ == "cooling":
        with lock("job:1", cooldown=LONG):
            pass
    with sent(task_not_run) as told, outage() if while_ == "an outage" else ExitStack():
        ended, value = room.deliver(message)
    assert state in (ended, type(value))
    assert outcomes(told) == ([(outcome, reason)] if outcome else [])
    for one in told:
        assert (one["task"], one["task_id"], one["store"]) == (task.name, message.id, "default")
        assert (one["name"], one["template"]) == ("job:1", "job:{job}")
        assert one["sender"] is type(task)
    if outcome == "given_up":
        event = locks.history(task_id=message.id)[0]
        assert (event.kind, event.name, event.reason) == ("given up", "job:1", reason)
        assert (event.owner.task, event.store) == (task.name, "default")
    if outcome == "skipped":
        event = skip_of(message.id)
        assert (event.name, event.reason, event.owner.task) == ("job:1", reason, task.name)
        hold = ("alice", "a migration") if while_ == "on hold" else (None, None)
        assert (event.holder.held_by, event.holder.reason) == hold


def test_a_skip_names_the_task_that_holds_the_lock_and_two_skips_are_two_events(
    room: Mailroom,
) -> None:
    skipped: list[str] = []

    def work(self: Any, job: int) -> None:
        for _ in range(2):
            skipped.append(task.delay(job).id)
            elsewhere(room, room.take())

    task = room.task(work)
    first = task.delay(1)
    assert room.deliver(room.take())[0] == "SUCCESS"
    for each in skipped:
        holder = skip_of(each).holder
        assert (holder.task, holder.task_id) == (task.name, first.id)
    assert len([event for event in locks.history() if event.kind == "skipped"]) == 2


def test_a_row_without_work_is_in_the_history(room: Mailroom, row: Job) -> None:
    Job.objects.update(status="done")
    result = room.task(guard=job_guard()).delay(row.pk)
    with sent(task_not_run) as told:
        room.work_off()
    event = skip_of(result.id)
    assert (event.name, event.reason, event.holder) == (f"job:{row.pk}", "invalid_state", None)
    assert outcomes(told) == [("skipped", "invalid_state")]


def test_coalesced_and_debounced_calls_name_who_does_their_work(room: Mailroom) -> None:
    task = room.task(on_conflict="coalesce")
    other, follow_up = task.delay(1), task.delay(1)
    with sent(task_not_run) as told, lock("job:1", ttl=LONG):
        for each in (follow_up, other):
            elsewhere(room, room.take(each.id))
    assert outcomes(told) == [("requeued", "held"), ("coalesced", "follow_up")]
    assert skip_of(other.id).reason == "coalesced"
    assert [event.kind for event in locks.history(task_id=follow_up.id)] == ["refused"]
    task = room.task(debounce=0.01, lock_name="burst:{job}")
    first, last = task.delay(1), task.delay(1)
    room.work_off()
    event = skip_of(first.id)
    assert (event.reason, event.holder.task_id) == ("debounced", last.id)


def test_a_duplicate_is_told_by_its_sender(room: Mailroom) -> None:
    task = room.task(unique_while="queued", on_duplicate="raise")
    first = task.delay(1)
    with sent(task_not_run) as told, pytest.raises(AlreadyQueued):
        task.delay(1)
    assert outcomes(told) == [("duplicate", "queued")]
    assert told[0]["task_id"] == first.id


def test_a_run_that_lost_its_lease_is_requeued_and_at_last_given_up(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        lose(self.lease)
        self.lease.assert_held()

    result = room.task(work, acks_late=True, lock_max_attempts=1).delay(1)
    with sent(task_not_run) as told:
        assert [state for state, _ in room.work_off()] == ["IGNORED", "FAILURE"]
    assert outcomes(told) == [("requeued", "lease_lost"), ("given_up", "too_many_attempts")]
    event = locks.history(task_id=result.id)[0]
    assert (event.kind, event.reason) == ("given up", "too_many_attempts")


def test_a_redelivery_of_a_run_that_has_ended_is_dropped(room: Mailroom) -> None:
    room.task(acks_late=True).delay(1)
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    with sent(task_not_run) as told:
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert outcomes(told) == [("dropped", "redelivery")]


@pytest.mark.parametrize("lock_name", ["job:{job}", by("job"), None])
def test_the_lease_of_a_run_has_the_template_an_adopted_one_too(
    room: Mailroom, lock_name: Any
) -> None:
    task = room.task(lock_name=lock_name)
    task.delay(1)
    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        assert room.work_off() == [("SUCCESS", "done:1")]
    task.apply_async((1,), lease=locks.acquire(task.lock_name_of((1,), {})))
    with sent(lock_released) as adopted:
        assert room.work_off() == [("SUCCESS", "done:1")]
    told = [*acquired, *released, *adopted]
    assert [one["template"] for one in told] == [task.naming.template] * 3


def test_a_receiver_that_fails_changes_nothing(room: Mailroom) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of somebody's")

    room.task().delay(1)
    task_not_run.connect(broken)
    try:
        with lock("job:1", ttl=LONG):
            assert room.deliver(room.take())[1]["reason"] == "already_processing"
    finally:
        task_not_run.disconnect(broken)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_skip_of_a_django_task_is_in_the_history_too(asynchronous: bool) -> None:
    class Context:
        class task_result:
            id = "id-1"

    @locked("job:{job}")
    def work(context: Any, job: int) -> None: ...

    @locked("job:{job}")
    async def work_async(context: Any, job: int) -> None: ...

    assert locks.hold("job:1", LONG, "alice", "a migration") is not None
    if asynchronous:
        asyncio.run(work_async(Context(), 1))
    else:
        work(Context(), 1)
    event = skip_of("id-1")
    assert (event.name, event.reason) == ("job:1", "held_by_operator")
    assert event.holder.held_by == "alice"
