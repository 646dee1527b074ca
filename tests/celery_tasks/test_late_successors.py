"""A run whose lease is lost sends no message that would go on with its work.

Its redelivery works then, or has worked, and goes on with it too.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Ignore

from django_tasklock import locks
from django_tasklock._values import clock
from tests.mailroom import Mailroom, Message, elsewhere, killed_before_release


def lose(task: Any, room: Mailroom, message: Message) -> None:
    """The process stands still for longer than its lease; the broker delivers the message again."""
    task.lease._deadline = clock.now() - 1
    locks.clear("job:1")
    elsewhere(room, message, redelivered=True)


@pytest.mark.parametrize("how", ["retries", "is replaced"])
def test_no_second_successor(room: Mailroom, how: str) -> None:
    starts: list[int] = []
    ends: list[Any] = []
    second = room.task(lambda self, job: ends.append(job), acks_late=True, lock_name="other:{job}")

    def work(self: Any, job: Any) -> Any:
        if self.request.retries:
            ends.append(job)
            return None
        starts.append(job)
        if len(starts) == 1:
            lose(self, room, message)
        if how == "retries":
            raise self.retry(countdown=0)
        raise self.replace(second.s(job))

    room.task(work, acks_late=True).delay(1)
    message = room.take()
    room.deliver(message)
    room.work_off()
    assert ends == [1]


def test_a_lost_lease_uses_up_no_retry(room: Mailroom) -> None:
    """``autoretry_for`` names every error."""
    starts: list[int] = []
    ends: list[int] = []

    def work(self: Any, job: Any) -> None:
        starts.append(self.request.retries)
        if len(starts) == 1:
            lose(self, room, message)
            self.lease.assert_held()
        ends.append(job)

    options = {"autoretry_for": (Exception,), "default_retry_delay": 0, "retry_backoff": False}
    room.task(work, acks_late=True, **options).delay(1)
    message = room.take()
    room.deliver(message)
    room.work_off()
    assert ends == [1]
    assert starts == [0, 0]


def test_without_acks_late_a_late_run_retries(room: Mailroom) -> None:
    """Nobody else has its message."""
    starts: list[int] = []

    def work(self: Any, job: Any) -> str:
        starts.append(self.request.retries)
        if len(starts) == 1:
            self.lease._deadline = clock.now() - 1
            locks.clear("job:1")
            raise self.retry(countdown=0)
        return "done"

    room.task(work).delay(1)
    assert [state for state, _ in room.work_off()] == ["RETRY", "SUCCESS"]


def test_a_try_that_was_sent_twice_runs_once(room: Mailroom) -> None:
    """The run was killed when it had sent its retry, and its redelivery sends one too."""
    room.app.conf.task_ignore_result = True
    ends: list[int] = []

    def work(self: Any, job: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)
        ends.append(job)

    room.task(work, acks_late=True).delay(1)
    message = room.take()

    killed_before_release(room, message)
    assert room.deliver(message, redelivered=True)[0] == "RETRY"
    assert len(room.waiting()) == 2
    assert [state for state, _ in room.work_off()] == ["SUCCESS", "IGNORED"]
    assert ends == [1]


def test_each_try_runs(room: Mailroom) -> None:
    tries: list[int] = []

    def work(self: Any, job: Any) -> None:
        tries.append(self.request.retries)
        if self.request.retries < 3:
            raise self.retry(countdown=0)

    room.task(work, acks_late=True, ignore_result=True).apply_async([1], task_id="daily")
    room.work_off()
    assert tries == [0, 1, 2, 3]


def test_a_try_that_sends_itself_again_is_another_message(room: Mailroom) -> None:
    tries: list[int] = []

    def work(self: Any, job: Any) -> None:
        tries.append(self.request.retries)
        if not self.request.retries:
            raise self.retry(countdown=0)
        if len(tries) == 2:
            self.apply_async([job], task_id=self.request.id, retries=self.request.retries)
            raise Ignore

    room.task(work, acks_late=True).delay(1)
    room.work_off()
    assert tries == [0, 1, 1]


def test_each_of_two_messages_by_name_has_its_tries(room: Mailroom) -> None:
    """With a task id of the caller's own, which does not say when it was sent."""
    tries: list[int] = []

    def work(self: Any, job: Any) -> None:
        tries.append(self.request.retries)
        if not self.request.retries:
            raise self.retry(countdown=0)

    task = room.task(work, acks_late=True, ignore_result=True)
    for _ in range(2):
        room.app.send_task(task.name, [1], task_id="daily")
        room.work_off()
    assert tries == [0, 1, 0, 1]


@pytest.mark.parametrize("how", ["eagerly", "directly"])
def test_a_call_without_a_message_retries_as_celery_has_it(room: Mailroom, how: str) -> None:
    """It has no redelivery."""
    starts: list[int] = []

    def work(self: Any, job: Any) -> str:
        starts.append(job)
        if len(starts) == 1:
            self.lease._deadline = clock.now() - 1
            locks.clear("job:1")
            raise self.retry(countdown=0, exc=KeyError("own"))
        return "done"

    task = room.task(work, acks_late=True)
    if how == "eagerly":
        assert task.apply([1]).state == "SUCCESS"
    else:
        with pytest.raises(KeyError, match="own"):
            task(1)
