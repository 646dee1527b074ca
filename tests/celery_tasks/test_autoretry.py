"""Celery's ``autoretry_for`` and what is raised outside of the body: by the lock, the store, the
row. The body's own errors are in ``test_other_classes.py``."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from django_tasklock import LeaseLost, LockNotAcquired, StatusConflict, StoreUnavailable, locks
from django_tasklock._engine import history
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.guards import StatusGuard
from django_tasklock.signals import task_not_run
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import away, job_guard, lose, pauses, status
from tests.mailroom import Mailroom, elsewhere
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, all_of, sent, taken

AT_ONCE = {"default_retry_delay": 0, "retry_jitter": False}


def refusing(room: Mailroom, *errors: type[Exception], **options: Any) -> Any:
    """A task that fails where its lock is held, and is retried for these errors."""
    return room.task(**{"on_conflict": "raise", "autoretry_for": errors, **AT_ONCE, **options})


@pytest.mark.parametrize(
    "options", [{}, {"on_conflict": "retry", "lock_retry_for": 0}], ids=["raise", "after its time"]
)
def test_a_refusal_is_retried_as_an_error_of_the_body(
    room: Mailroom, options: dict[str, Any]
) -> None:
    """And is told as an end only if it is one."""
    result = refusing(room, LockNotAcquired, max_retries=1, **options).delay(1)
    lease = Meanwhile(lambda: taken("job:1")).result()
    with sent(task_not_run) as told:
        assert room.deliver(room.take())[0] == "RETRY"
        assert told == []
        again = room.take()
        assert (again.id, again.headers["retries"]) == (result.id, 1)
        state, error = room.deliver(again)
    assert (state, type(error), room.ids()) == ("FAILURE", LockNotAcquired, [])
    assert [one["outcome"] for one in told] == ["given_up"]
    lease.release()


def test_a_retry_runs_when_the_lock_is_free(room: Mailroom) -> None:
    refusing(room, LockNotAcquired).delay(1)
    lease = Meanwhile(lambda: taken("job:1")).result()
    assert room.deliver(room.take())[0] == "RETRY"
    lease.release()
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_an_outage_is_retried(room: Mailroom) -> None:
    refusing(room, StoreUnavailable, on_outage="raise").delay(1)
    with outage():
        assert room.deliver(room.take())[0] == "RETRY"
    assert room.work_off() == [("SUCCESS", "done:1")]


@pytest.mark.parametrize(
    "options",
    [
        {"autoretry_for": (LookupError,)},
        {"autoretry_for": ()},
        {"autoretry_for": (Exception,), "dont_autoretry_for": (LockNotAcquired,)},
        {"autoretry_for": (Exception,), "max_retries": 0},
    ],
)
def test_another_error_or_one_too_many_is_raised_as_it_is(
    room: Mailroom, options: dict[str, Any]
) -> None:
    refusing(room, **options).delay(1)
    Meanwhile(lambda: taken("job:1")).result()
    state, error = room.deliver(room.take())
    assert (state, type(error), room.ids()) == ("FAILURE", LockNotAcquired, [])
    assert error.holder.name == "job:1"


def test_the_options_of_the_retry_are_those_of_the_task(room: Mailroom) -> None:
    task = refusing(
        room, LockNotAcquired, retry_backoff=30, retry_kwargs={"max_retries": 7, "priority": 6}
    )
    task.delay(1)
    Meanwhile(lambda: taken("job:1")).result()
    state, retry = room.deliver(room.take())
    assert (state, retry.when) == ("RETRY", 30)
    assert retry.sig.options["priority"] == 6
    assert "_orig_run" in vars(task), "the body's own wrapper is there still"
    assert type(task).run is not task.run


def test_a_direct_call_raises_the_error_itself(room: Mailroom) -> None:
    """Also inside another run of the same task, whose message must not be sent again."""

    def work(self: Any, job: int) -> str:
        if job == 2:
            with pytest.raises(LockNotAcquired):
                task(1)
        return "done"

    task = room.task(work, on_conflict="raise", autoretry_for=(Exception,), default_retry_delay=0)
    lease = Meanwhile(lambda: taken("job:1")).result()
    with pytest.raises(LockNotAcquired):
        task(1)
    task.delay(2)
    assert room.work_off() == [("SUCCESS", "done")]
    lease.release()


def test_an_eager_call_is_retried_at_once_and_then_fails(room: Mailroom) -> None:
    task = refusing(room, LockNotAcquired, max_retries=2)
    Meanwhile(lambda: taken("job:1")).result()
    with sent(task_not_run) as told:
        result = task.apply((1,))
    assert (result.state, type(result.result)) == ("FAILURE", LockNotAcquired)
    assert len(told) == 1


def test_two_threads_are_retried_each_for_its_own_message(room: Mailroom) -> None:
    task = refusing(room, LockNotAcquired, name="threads", max_retries=3)
    ids = {task.delay(job).id for job in (1, 2)}
    for job in (1, 2):
        Meanwhile(lambda job=job: taken(f"job:{job}")).result()  # type: ignore[misc]
    messages = [room.take(), room.take()]
    ends = all_of(*[lambda m=m: room.deliver(m)[0] for m in messages])
    assert (ends, set(room.ids())) == (["RETRY", "RETRY"], ids)


def test_a_retry_that_the_broker_does_not_take_is_no_message_lost(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(room, LockNotAcquired, acks_late=True).delay(1)
    message = room.take()
    lease = Meanwhile(lambda: taken("job:1")).result()
    away(broker)
    pauses(monkeypatch, broker.accept)
    state, error = room.deliver(message)
    assert (state, error.requeue) == ("REJECTED", True)
    lease.release()
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")


def test_what_the_message_has_reserved_is_kept_for_its_retry(room: Mailroom) -> None:
    task = refusing(room, LockNotAcquired, unique_while="queued")
    first = task.delay(1)
    Meanwhile(lambda: taken("job:1")).result()
    room.deliver(room.take())
    assert (task.delay(1).id, room.ids()) == (first.id, [first.id])


def test_a_run_that_died_too_often_is_not_retried(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = room.task(acks_late=True, lock_max_attempts=1, autoretry_for=(Exception,), **AT_ONCE)
    task.delay(1)
    message = room.take()
    locks.store.set_note(_death(room, message))
    state, error = room.deliver(message, redelivered=True)
    assert (state, type(error), room.ids()) == ("FAILURE", TooManyAttempts, [])


def _death(room: Mailroom, message: Any) -> Any:
    """The note of a run of this message that has died."""
    attempts = room.received(message).attempts
    attempts.read()
    return attempts._started(1)


def test_a_result_that_does_not_count_is_retried(room: Mailroom, row: Job) -> None:
    """Another has changed the row meanwhile: `StatusConflict`."""

    def work(self: Any, job: int) -> str:
        runs.append(self.request.retries)
        if len(runs) == 1:
            Job.objects.update(status="queued")
        return "done"

    runs: list[int] = []
    room.task(work, guard=job_guard(), autoretry_for=(StatusConflict,), **AT_ONCE).delay(row.pk)
    assert [state for state, _ in room.work_off()] == ["RETRY", "SUCCESS"]
    assert (runs, status(row)) == ([0, 1], "done")


def test_a_lost_lease_is_retried_where_no_message_comes_back(room: Mailroom) -> None:
    def work(self: Any, job: int) -> str:
        runs.append(self.request.retries)
        if len(runs) == 1:
            lose(self.lease)
        return "done"

    runs: list[int] = []
    room.task(work, autoretry_for=(LeaseLost,), **AT_ONCE).delay(1)
    assert [state for state, _ in room.work_off()] == ["RETRY", "SUCCESS"]
    assert runs == [0, 1]


@pytest.mark.parametrize("late", [True, False], ids=["acks_late", ""])
def test_an_error_of_the_database_at_the_end_is_retried_on_the_row(
    room: Mailroom, row: Job, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    runs: list[int] = []

    def work(self: Any, job: int) -> str:
        runs.append(self.request.retries)
        return "done"

    def finish(self: Any, *args: Any) -> None:
        if len(runs) == 1:
            raise OperationalError("too many connections")
        real(self, *args)

    real = StatusGuard.finish
    monkeypatch.setattr(StatusGuard, "finish", finish)
    task = room.task(
        work, guard=job_guard(), acks_late=late, autoretry_for=(OperationalError,), **AT_ONCE
    )
    task.delay(row.pk)
    assert room.deliver(room.take())[0] == "RETRY"
    assert status(row) == "queued"
    assert room.work_off() == [("SUCCESS", "done")]
    assert (runs, status(row)) == ([0, 1], "done")


def test_what_is_given_up_is_an_event_of_the_history(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what was retried."""
    monkeypatch.setattr(history, "BATCH_SECONDS", LONG)
    task = refusing(room, LockNotAcquired, max_retries=1)
    result = task.delay(1)
    Meanwhile(lambda: taken("job:1")).result()
    elsewhere(room, room.take())
    assert [event.kind for event in locks.history(task_id=result.id)] == ["refused"]
    elsewhere(room, room.take())
    event = locks.history(task_id=result.id)[0]
    assert (event.kind, event.name, event.reason) == ("given up", "job:1", "held")
    assert (event.owner.task, event.owner.task_id) == (task.name, result.id)
