"""A result backend in which Celery's STARTED overwrites the success of a redelivered call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Message, mailroom
from tests.servers import RedisServer


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    use_redis()
    with mailroom(redis_server.url) as room:
        room.app.conf.update(
            result_backend="tests.overwriting_backend:OverwritingBackend", task_track_started=True
        )
        yield room


def forget_notes() -> None:
    """What the store knows of the runs that have ended is forgotten after two minutes."""
    store: Any = stores["default"]
    client = store.client.redis
    notes = client.keys("*run *")
    assert notes
    client.delete(*notes)


def sent(room: Mailroom, runs: list[str]) -> Message:
    """A message whose run notes what the result backend says of it."""

    def work(self: Any, job: Any) -> str:
        runs.append(self.app.backend.get_task_meta(self.request.id)["status"])
        return f"done:{job}"

    room.task(work, acks_late=True).delay("7")
    return room.take()


@pytest.mark.parametrize("noted", [True, False])
def test_a_redelivery_that_is_dropped_leaves_the_success(room: Mailroom, noted: bool) -> None:
    runs: list[str] = []
    message = sent(room, runs)
    assert room.deliver(message) == ("SUCCESS", "done:7")
    if not noted:
        forget_notes()
    for _ in range(2):
        # I expect it to be dropped each time, and the result to be there for who asks
        state, _ = room.deliver(message, redelivered=True)
        assert state == "IGNORED"
        meta: Any = room.app.backend.get_task_meta(message.id)
        assert (meta["status"], meta["result"]) == ("SUCCESS", "done:7")
    # The run itself was shown as started.
    assert runs == ["STARTED"]


def test_a_redelivery_whose_run_died_runs_and_stores_its_success(room: Mailroom) -> None:
    runs: list[str] = []
    message = sent(room, runs)
    # Given a first run that stored STARTED, and was killed
    room.app.backend.store_result(message.id, {"pid": 1}, "STARTED")
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:7")
    meta: Any = room.app.backend.get_task_meta(message.id)
    assert (meta["status"], meta["result"]) == ("SUCCESS", "done:7")
    assert runs == ["STARTED"]
