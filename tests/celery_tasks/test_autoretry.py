"""Celery's ``autoretry_for`` and what is raised outside of the body: by the lock, the store, the
row. The body's own errors are in ``test_other_classes.py``, and the way to the run that succeeds is
in ``tests/hard_cases/test_requeues.py``."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from django_tasklock import LeaseLost, LockNotAcquired, StatusConflict, locks
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.guards import StatusGuard
from django_tasklock.signals import task_not_run
from tests.app.models import Job
from tests.celery_tasks.conftest import away, held_elsewhere, job_guard, lose, pauses, status
from tests.inside import keep_events_for
from tests.mailroom import Mailroom, Message, Runs, elsewhere, killed_in_body
from tests.proxy import CutProxy
from tests.steps import LONG, all_of, sent

AT_ONCE = {"default_retry_delay": 0, "retry_jitter": False}


def refusing(room: Mailroom, *errors: type[Exception], **options: Any) -> Any:
    """A task that fails where its lock is held, and is retried for these errors."""
    return room.task(**{"on_conflict": "raise", "autoretry_for": errors, **AT_ONCE, **options})


def refused(room: Mailroom, *errors: type[Exception], **options: Any) -> Message:
    """The message of such a task, whose lock is held now."""
    refusing(room, *errors, **options).delay(1)
    held_elsewhere()
    return room.take()


@pytest.mark.parametrize(
    "options", [{}, {"on_conflict": "retry", "lock_retry_for": 0}], ids=["raise", "after its time"]
)
def test_a_refusal_is_retried_as_an_error_of_the_body(
    room: Mailroom, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a task whose lock is held, and that is to be retried once for that
    keep_events_for(monkeypatch, LONG)
    message = refused(room, LockNotAcquired, max_retries=1, **options)

    # I expect its message to be sent again as Celery does it, and nobody to be told of an end
    with sent(task_not_run) as told:
        assert elsewhere(room, message)[0] == "RETRY"
        assert told == []
        assert [event.kind for event in locks.history(task_id=message.id)] == ["refused"]
        again = room.take()
        assert (again.id, again.headers["retries"]) == (message.id, 1)

        # And the retry to fail with the lock's error, which is told, and is in the history
        room.fails(again, LockNotAcquired)
    assert room.ids() == []
    assert [one["outcome"] for one in told] == ["given_up"]
    assert locks.history(task_id=message.id)[0].kind == "given up"


@pytest.mark.parametrize(
    "options",
    [
        {"autoretry_for": (LookupError,)},
        {"autoretry_for": ()},
        {"autoretry_for": (Exception,), "dont_autoretry_for": (LockNotAcquired,)},
        {"autoretry_for": (Exception,), "max_retries": 0},
    ],
    ids=["another", "none", "not this one", "one too many"],
)
def test_another_error_or_one_too_many_is_raised_as_it_is(
    room: Mailroom, options: dict[str, Any]
) -> None:
    assert room.fails(refused(room, **options), LockNotAcquired).holder.name == "job:1"
    assert room.ids() == []


def test_the_options_of_the_retry_are_those_of_the_task(room: Mailroom) -> None:
    retry_kwargs = {"max_retries": 7, "priority": 6}
    message = refused(room, LockNotAcquired, retry_backoff=30, retry_kwargs=retry_kwargs)
    state, retry = room.deliver(message)
    assert (state, retry.when) == ("RETRY", 30)
    assert retry.sig.options["priority"] == 6
    task = room.app.tasks[message.task]
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
    held_elsewhere()
    with pytest.raises(LockNotAcquired):
        task(1)
    task.delay(2)
    assert room.work_off() == [("SUCCESS", "done")]


def test_an_eager_call_is_retried_at_once_and_then_fails(room: Mailroom) -> None:
    task = refusing(room, LockNotAcquired, max_retries=2)
    held_elsewhere()
    with sent(task_not_run) as told:
        result = task.apply((1,))
    assert (result.state, type(result.result)) == ("FAILURE", LockNotAcquired)
    assert len(told) == 1


def test_two_threads_are_retried_each_for_its_own_message(room: Mailroom) -> None:
    task = refusing(room, LockNotAcquired, name="threads", max_retries=3)
    ids = {task.delay(job).id for job in (1, 2)}
    for job in (1, 2):
        held_elsewhere(f"job:{job}")
    messages = [room.take(), room.take()]
    ends = all_of(*[lambda m=m: room.deliver(m)[0] for m in messages])
    assert (ends, set(room.ids())) == (["RETRY", "RETRY"], ids)


def test_a_retry_that_the_broker_does_not_take_is_no_message_lost(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refused(room, LockNotAcquired, acks_late=True)
    away(broker)
    pauses(monkeypatch, broker.accept)
    state, error = room.deliver(message)
    assert (state, error.requeue) == ("REJECTED", True)
    locks.clear("job:1")
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")


def test_what_the_message_has_reserved_is_kept_for_its_retry(room: Mailroom) -> None:
    task = refusing(room, LockNotAcquired, unique_while="queued")
    first = task.delay(1)
    held_elsewhere()
    room.deliver(room.take())
    assert (task.delay(1).id, room.ids()) == (first.id, [first.id])


def test_a_run_that_died_too_often_is_not_retried(room: Mailroom) -> None:
    options = {"lock_max_attempts": 1, "autoretry_for": (Exception,), **AT_ONCE}
    message = room.message(acks_late=True, **options)
    killed_in_body(room, message)
    room.fails(message, TooManyAttempts, redelivered=True)
    assert room.ids() == []


@pytest.mark.parametrize("error", [StatusConflict, LeaseLost])
def test_a_result_that_does_not_count_is_retried(
    room: Mailroom, row: Job, error: type[Exception]
) -> None:
    """Another has changed the row meanwhile, or the lock is lost, and no message comes back."""

    def first(self: Any, job: int) -> None:
        if error is LeaseLost:
            lose(self.lease)
        Job.objects.update(status="queued")

    guard = job_guard() if error is StatusConflict else None
    runs = Runs(first, None)
    room.task(runs, guard=guard, autoretry_for=(error,), **AT_ONCE).delay(row.pk)
    assert room.states() == ["RETRY", "SUCCESS"]
    assert (len(runs), status(row)) == (2, "done" if guard else "queued")


@pytest.mark.parametrize("late", [True, False], ids=["acks_late", ""])
def test_an_error_of_the_database_at_the_end_is_retried_on_the_row(
    room: Mailroom, row: Job, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    runs, real = Runs(), StatusGuard.finish

    def finish(self: Any, *args: Any) -> None:
        if len(runs) == 1:
            raise OperationalError("too many connections")
        real(self, *args)

    monkeypatch.setattr(StatusGuard, "finish", finish)
    message = room.message(
        runs,
        row.pk,
        guard=job_guard(),
        acks_late=late,
        autoretry_for=(OperationalError,),
        **AT_ONCE,
    )
    assert room.deliver(message)[0] == "RETRY"
    assert status(row) == "queued"
    assert room.states() == ["SUCCESS"]
    assert (len(runs), status(row)) == (2, "done")
