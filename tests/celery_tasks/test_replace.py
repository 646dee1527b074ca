"""``on_conflict="replace"``, message by message: those that wait, and come again. The run that is
replaced is in ``test_recall.py``; workers are in ``tests/hard_cases``."""

from __future__ import annotations

from typing import Any

import pytest
from celery.worker.state import revoked

from django_tasklock import LockNotAcquired, lock
from tests.app.models import Job
from tests.celery_tasks.conftest import (
    HOW,
    call,
    job_guard,
    recalled,
    recording,
    replaced_by,
    replacing,
    retries,
    status,
)
from tests.mailroom import REDELIVERY, Mailroom, killed_in_body
from tests.steps import LONG, silent

pytestmark = pytest.mark.usefixtures("recalls_soon")


def test_of_the_calls_that_wait_the_newest_runs(room: Mailroom) -> None:
    # Given a lock that is held, and calls that are sent at once, and wait for it
    task, runs = recording(room, on_conflict="replace")
    with lock("job:1", ttl=LONG):
        results = [task.delay(1, number) for number in range(3)]
        assert [message.headers["eta"] for message in room.waiting()] == [None] * 3
        first, second, newest = (room.take() for _ in results)
        # I expect the older ones to be skipped, and the newest to wait, however often it comes
        for older in (first, second):
            replaced_by(room.deliver(older), newest.id)
        for _ in range(3):
            assert room.deliver(newest)[0] == "IGNORED"
            newest = room.take()
    # And to run when the lock is free
    assert room.deliver(newest) == ("SUCCESS", "done:2")
    assert runs == [2]


def test_with_debounce_calls_are_delayed_and_a_run_is_replaced_too(room: Mailroom) -> None:
    task, runs = replacing(room, recalled, None, debounce=LONG)
    first, second = [task.delay(1) and room.take() for _ in range(2)]
    assert first.headers["eta"]
    replaced_by(room.deliver(first), second.id)
    outcome = room.deliver(second)
    third = room.take()
    assert third.headers["eta"]
    replaced_by(outcome, third.id)
    assert room.deliver(third)[0] == "SUCCESS"
    assert runs == [second.id, third.id]


def test_a_retry_is_as_old_as_its_call(room: Mailroom) -> None:
    # Given an older and a newer call, both of which retry
    task, runs = replacing(room, retries, retries, None)
    old = task.delay(1).id
    room.deliver(room.take())
    newest = task.delay(1).id
    room.deliver(room.take(newest))
    # I expect the retry of the newer one to run, and that of the older one not to run after it
    room.deliver(room.take(newest))
    replaced_by(room.deliver(room.take(old)), newest)
    assert (runs, room.waiting()) == ([old, newest, newest], [])


def test_what_replaces_an_older_run_is_as_old_as_that(room: Mailroom) -> None:
    """`Task.replace`, by a call of the same task."""
    order: list[Any] = []

    def body(self: Any, job: Any, step: int) -> None:
        order.append(step)
        if step == 1:
            raise self.replace(self.s(job, 11))

    task = room.register(body, bind=True, lock_name="job:{job}", on_conflict="replace")
    task.delay(1, 1)
    room.deliver(room.take())
    newest = task.delay(1, 2)
    room.deliver(room.take(newest.id))
    room.work_off()
    assert order == [1, 2]


def test_a_newest_call_that_is_revoked_has_replaced_the_others(room: Mailroom) -> None:
    task, runs = replacing(room)
    old, newest = [task.delay(1) and room.take() for _ in range(2)]
    revoked.add(newest.id)
    assert room.received(newest).revoked()
    replaced_by(room.deliver(old), newest.id)
    assert runs == []


def test_of_runs_that_died_the_older_one_is_skipped_and_the_newest_runs_again(
    room: Mailroom, row: Job
) -> None:
    task, runs = replacing(room, acks_late=True, guard=job_guard())
    task.delay(row.pk)
    old = room.take()
    killed_in_body(room, old)
    task.delay(row.pk)
    newest = room.take()
    replaced_by(room.deliver(old, redelivered=REDELIVERY), newest.id)
    assert status(row) == "working"
    killed_in_body(room, newest)
    assert room.deliver(newest, redelivered=REDELIVERY)[0] == "SUCCESS"
    assert (runs, status(row)) == ([newest.id], "done")


def test_an_older_call_never_runs_after_a_newer_one_whose_sender_died(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it could note that it had sent the call."""
    task, runs = replacing(room)
    task.delay(1)
    with monkeypatch.context() as patch:
        silent(patch, "update_note")
        newest = task.delay(1).id
    room.deliver(room.take(newest))
    replaced_by(room.deliver(room.take()), newest)
    assert runs == [newest]


def test_a_message_without_a_moment_waits_replaces_nothing_and_is_replaced_by_nothing(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is sent in an outage, and one that is sent by name."""
    task, runs = recording(room, on_conflict="replace", lock_retry_for=0.001)
    task.delay(1, "before")
    with monkeypatch.context() as patch:
        silent(patch, "get")
        task.delay(1, "in an outage")
    room.app.send_task(task.name, (1, "by name"), queue=room.queue)
    with lock("job:1", ttl=LONG):
        for _ in range(2):
            assert [room.deliver(room.take())[0] for _ in range(3)] == ["IGNORED"] * 3
    task.delay(1, "newest")
    reasons = [value["reason"] for _, value in room.work_off() if isinstance(value, dict)]
    assert (runs, reasons) == (["in an outage", "by name", "newest"], ["replaced"])


@HOW
def test_a_call_that_has_no_message_is_refused(room: Mailroom, how: str) -> None:
    task, runs = replacing(room)
    with lock("job:1", ttl=LONG), pytest.raises(LockNotAcquired):
        call(task, how, 1)
    call(task, how, 1)
    notes = room.redis.keys(f"*debounce {task.name} *")
    assert (len(runs), notes, room.waiting()) == (1, [], [])
