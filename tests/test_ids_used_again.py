"""A task id that is used again, as by a daily job with an id of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from django_tasklock import lock
from example_project.servers import RedisServer
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    use_redis()
    with mailroom(redis_server.url) as room:
        yield room


@pytest.fixture(params=["results are kept", "no results"])
def task(room: Mailroom, request: pytest.FixtureRequest) -> Any:
    ignored = request.param == "no results"
    return room.task(runs_of, acks_late=True, ignore_result=ignored)


def runs_of(self: Any, job: list[str]) -> int:
    """The body: counts its runs."""
    runs.append(self.request.id)
    return len(runs)


runs: list[str] = []


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    runs.clear()


def test_its_next_message_runs_though_it_is_redelivered(room: Mailroom, task: Any) -> None:
    """A worker had prefetched it and was killed; the result of the day before still stands."""
    for number in range(1, 4):
        task.apply_async((1,), task_id="daily")
        assert room.deliver(room.take(), redelivered=number > 1) == ("SUCCESS", number)
    assert len(runs) == 3


def test_late_copies_of_each_of_its_messages_are_dropped(room: Mailroom, task: Any) -> None:
    messages = []
    for _ in range(3):
        task.apply_async((1,), task_id="daily")
        messages.append(room.take())
        assert room.deliver(messages[-1])[0] == "SUCCESS"
        for message in messages:
            assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert len(runs) == 3
    assert room.waiting() == []


def test_its_next_message_keeps_its_way_through_the_queue(room: Mailroom, task: Any) -> None:
    """Put back, it is still known for the second sending."""
    task.apply_async((1,), task_id="daily")
    assert room.deliver(room.take())[0] == "SUCCESS"
    task.apply_async((1,), task_id="daily")
    second = room.take()
    sent = second.ours["sent"]
    task.on_conflict = "retry"
    with lock("job:1", ttl=60):
        for number in range(2):
            assert room.deliver(second, redelivered=number > 0)[0] == "IGNORED"
            second = room.take()
            assert second.ours["sent"] == sent
    assert room.deliver(second, redelivered=True) == ("SUCCESS", 2)
    assert room.deliver(second, redelivered=True)[0] == "IGNORED"


def test_a_late_copy_of_what_was_sent_by_name_is_dropped(room: Mailroom, task: Any) -> None:
    """Nothing tells its sendings apart; a result is taken for its own, as it mostly is."""
    sender = Celery("sender", broker=room.app.conf.broker_url, set_as_current=False, fixups=[])
    sender.send_task(task.name, (1,), queue=room.queue)
    message = room.take()
    assert not message.ours
    assert room.deliver(message)[0] == "SUCCESS"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    sender.close()
    assert len(runs) == 1


def test_the_copy_of_a_replacement_is_not_taken_for_one_of_what_it_replaced(
    room: Mailroom, task: Any
) -> None:
    """The two have one task id."""

    def work(self: Any, job: Any) -> Any:
        raise self.replace(task.s(job))

    room.task(work, acks_late=True).delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    replacement = room.take()
    assert room.deliver(replacement, redelivered=True) == ("SUCCESS", 1)
    assert room.deliver(replacement, redelivered=True)[0] == "IGNORED"
