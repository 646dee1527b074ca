"""A run whose lease is lost sends no message that would go on with its work.

Its redelivery works then, or has worked, and goes on with it too.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._values import clock
from tests.mailroom import Mailroom, Message, elsewhere


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
