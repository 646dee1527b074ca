"""What ``app.send_task`` sends by name: no reservation, and nobody else's is touched."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import celery
import pytest
from celery.beat import ScheduleEntry, Scheduler, SchedulingError

from django_tasklock import lock
from tests.mailroom import Mailroom
from tests.steps import LONG

MODES = ["queued", "unfinished"]


@pytest.fixture(params=["knows the task", "does not"])
def sender(request: pytest.FixtureRequest, room: Mailroom) -> Iterator[Any]:
    """An app that sends to the room's queue."""
    if request.param == "knows the task":
        yield room.app
        return
    with celery.Celery("stranger", broker=room.app.conf.broker_url, set_as_current=False) as app:
        app.conf.update(task_default_queue=room.queue, result_backend="cache+memory://")
        yield app


@pytest.mark.parametrize("mode", MODES)
def test_each_is_sent_and_reserves_nothing(room: Mailroom, sender: Any, mode: str) -> None:
    task = room.task(unique_while=mode)
    by_name = [sender.send_task(task.name, (1,)).id for _ in range(3)]
    called = task.delay(1).id
    assert task.delay(1).id == called
    by_name.append(sender.send_task(task.name, (1,)).id)
    assert room.ids() == [*by_name[:3], called, by_name[3]]


@pytest.mark.parametrize("mode", MODES)
def test_its_run_leaves_the_reservation_of_another_message(
    room: Mailroom, sender: Any, mode: str
) -> None:
    task = room.task(unique_while=mode)
    waits = task.delay(1).id
    for ending in ("run", "skipped", "failed"):
        by_name = sender.send_task(task.name, (1,), {"wrong": 1} if ending == "failed" else {}).id
        message = room.take(by_name)
        if ending == "skipped":
            with lock("job:1", ttl=LONG):
                room.deliver(message)
        else:
            room.deliver(message)
        assert task.delay(1).id == waits
    assert room.ids() == [waits]


def test_its_retry_and_its_requeued_message_take_no_reservation_of_another(
    room: Mailroom, sender: Any
) -> None:
    tries: list[str] = []

    def work(self: Any, job: Any) -> None:
        tries.append(self.request.id)
        if len(tries) == 1:
            raise self.retry(countdown=0)

    task = room.task(work, unique_while="queued", on_conflict="retry")
    waits = task.delay(1).id
    by_name = sender.send_task(task.name, (1,)).id
    with lock("job:1", ttl=LONG):
        assert room.deliver(room.take(by_name))[0] == "IGNORED"
    assert task.delay(1).id == waits
    assert room.deliver(room.take(by_name))[0] == "RETRY"
    assert task.delay(1).id == waits
    assert room.deliver(room.take(by_name))[0] == "SUCCESS"
    assert task.delay(1).id == waits
    assert room.ids() == [waits]


def test_unfinished_its_run_counts(room: Mailroom, sender: Any) -> None:
    """A run is recognised by its lease, whoever sent its message."""
    sent: list[str] = []
    task: Any = room.task(
        lambda self, job: sent.append(task.delay(job).id), unique_while="unfinished"
    )
    by_name = sender.send_task(task.name, (1,)).id
    assert room.deliver(room.take())[0] == "SUCCESS"
    assert sent == [by_name]


# ------------------------------------------------------------------------------ beat


def entry(room: Mailroom, task: str, **options: Any) -> Any:
    return ScheduleEntry(
        "every", task, schedule=celery.schedules.schedule(1), args=(1,), options=options,
        app=room.app,
    )  # fmt: skip


def ticks(room: Mailroom, one: Any, times: int) -> list[Any]:
    """What beat gets when the entry is due so many times."""
    scheduler = Scheduler(room.app, lazy=True)
    with room.app.producer_pool.acquire(block=True) as producer:
        return [scheduler.apply_async(one, producer, advance=False) for _ in range(times)]


def test_a_duplicate_of_beat_is_one_line_in_the_log(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    task = room.task(unique_while="queued")
    with caplog.at_level(logging.INFO):
        first, *others = ticks(room, entry(room, task.name), 3)
    assert {result.id for result in others} == {first.id}
    said = [record.getMessage() for record in caplog.records if "not sent" in record.getMessage()]
    assert said == [f"a call of {task.name} was not sent: {first.id} waits already, lock job:1"] * 2
    if celery.VERSION[:2] >= (5, 7):  # From then on beat marks what it sends.
        assert room.waiting()[0].headers["celery_beat_task"] is True


def test_a_duplicate_of_a_run_is_logged_as_one(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    task: Any = room.task(lambda self, job: task.delay(job), unique_while="unfinished")
    first = task.delay(1)
    with caplog.at_level(logging.INFO):
        room.deliver(room.take())
    assert f"was not sent: {first.id} runs already, lock job:1" in caplog.text


def test_a_duplicate_of_beat_may_raise(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    one = entry(room, task.name, on_duplicate="raise", expires=3600)
    ticks(room, one, 1)
    with pytest.raises(SchedulingError, match="Couldn't apply scheduled task every"):
        ticks(room, one, 1)
    assert len(room.waiting()) == 1


def test_an_entry_with_a_wrong_option_says_so(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    with pytest.raises(SchedulingError, match="there is no option unique_fro"):
        ticks(room, entry(room, task.name, unique_fro=60), 1)


def test_a_beat_that_does_not_know_the_task_sends_each(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    waits = task.delay(1).id
    known = room.app.tasks.pop(task.name)
    ids = [result.id for result in ticks(room, entry(room, task.name, queue=room.queue), 3)]
    room.app.tasks[task.name] = known
    assert room.ids() == [waits, *ids]
    assert task.delay(1).id == waits
