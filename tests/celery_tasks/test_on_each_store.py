"""What tasks keep in their store: the lock, the note of a run that has ended, the reservation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock.stores.base import BaseStore
from tests.mailroom import Mailroom, elsewhere, mailroom
from tests.servers import RedisServer
from tests.steps import holder


@pytest.fixture
def room(each_store: BaseStore, redis_server: RedisServer) -> Iterator[Mailroom]:
    """The locks are in the store; the broker is Redis."""
    with mailroom(redis_server.url) as room:
        yield room


def test_a_message_runs_under_its_lock_and_its_redelivery_is_dropped(room: Mailroom) -> None:
    runs: list[str] = []

    def work(self: Any, job: Any) -> str:
        runs.append(self.request.id)
        assert holder("job:1").token == self.lease.token
        # And another message of the same job is skipped.
        _, skipped = elsewhere(room, other)
        assert skipped["reason"] == "already_processing"
        return "ran"

    task = room.task(work, acks_late=True)
    task.delay(1)
    task.delay(1)
    message, other = room.take(), room.take()
    assert room.deliver(message) == ("SUCCESS", "ran")
    assert not locks.is_locked("job:1")
    room.deliver(message, redelivered=True)
    assert runs == [message.id]


def test_a_job_that_waits_in_the_queue_is_not_sent_again(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    first = task.delay(1)
    assert task.delay(1).id == first.id
    assert room.ids() == [first.id]
    assert room.deliver(room.take()) == ("SUCCESS", "done:1")
    assert task.delay(1).id != first.id
