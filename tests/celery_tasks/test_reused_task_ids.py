"""A task id that is used again, for example by a daily job with a fixed id."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from django_tasklock import lock
from tests.mailroom import Mailroom


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
    """A killed worker had prefetched it; the result of the day before is still stored."""
    for number in range(1, 4):
        task.apply_async((1,), task_id="daily")
        assert room.deliver(room.take(), redelivered=number > 1) == ("SUCCESS", number)
    assert len(runs) == 3


def test_redeliveries_of_each_of_its_messages_are_dropped(room: Mailroom, task: Any) -> None:
    messages = []
    for _ in range(3):
        task.apply_async((1,), task_id="daily")
        messages.append(room.take())
        assert room.deliver(messages[-1])[0] == "SUCCESS"
        for message in messages:
            assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert len(runs) == 3
    assert room.waiting() == []


def test_its_next_message_is_recognised_after_a_requeue(room: Mailroom, task: Any) -> None:
    """The requeued message still has the time of its own sending."""
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


def test_a_redelivery_of_what_was_sent_by_name_is_dropped(room: Mailroom, task: Any) -> None:
    """Its sendings cannot be told apart: a stored result counts as that of this sending."""
    sender = Celery("sender", broker=room.app.conf.broker_url, set_as_current=False, fixups=[])
    sender.send_task(task.name, (1,), queue=room.queue)
    message = room.take()
    assert not message.ours
    assert room.deliver(message)[0] == "SUCCESS"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    sender.close()
    assert len(runs) == 1


def test_a_redelivery_of_a_replacement_is_not_confused_with_the_replaced_task(
    room: Mailroom, task: Any
) -> None:
    """Both have the same task id."""

    def work(self: Any, job: Any) -> Any:
        raise self.replace(task.s(job))

    room.task(work, acks_late=True).delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    replacement = room.take()
    assert room.deliver(replacement, redelivered=True) == ("SUCCESS", 1)
    assert room.deliver(replacement, redelivered=True)[0] == "IGNORED"
