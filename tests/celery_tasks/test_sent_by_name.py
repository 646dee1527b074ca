"""What ``app.send_task`` sends by name: no reservation, and nobody else's is touched; and beat."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import celery
import pytest
from celery.beat import ScheduleEntry, Scheduler, SchedulingError

from django_tasklock import lock
from tests.celery_tasks.conftest import reserved_for, retries
from tests.mailroom import Mailroom, Runs, coalesced
from tests.steps import LONG, Meanwhile

MODES = pytest.mark.parametrize("mode", ["queued", "unfinished"])


@pytest.fixture(params=["knows the task", "does not"])
def sender(request: pytest.FixtureRequest, room: Mailroom) -> Iterator[Any]:
    """An app that sends to the room's queue."""
    if request.param == "knows the task":
        yield room.app
        return
    with celery.Celery("stranger", broker=room.app.conf.broker_url, set_as_current=False) as app:
        app.conf.update(task_default_queue=room.queue, result_backend="cache+memory://")
        yield app


@MODES
def test_what_is_sent_by_name_touches_no_reservation(
    room: Mailroom, sender: Any, mode: str
) -> None:
    # Given a message that waits, and has reserved its job
    task = room.task(unique_while=mode)
    waits = task.delay(1).id

    # I expect each call by name to be sent all the same
    for how in ("skip", "fail", "retry"):
        task.on_conflict = "skip" if how == "skip" else "retry"
        by_name = sender.send_task(task.name, (1,), {"wrong": 1} if how == "fail" else {}).id
        assert task.delay(1).id == waits

        # And neither its skip, nor its failure, nor its requeue and its run to end the reservation
        with lock("job:1", ttl=LONG):
            room.deliver(room.take(by_name))
        while by_name in room.ids():
            room.deliver(room.take(by_name))
            assert task.delay(1).id == waits
        assert room.ids() == [waits]


@MODES
def test_its_retry_waits_as_any_other(room: Mailroom, sender: Any, mode: str) -> None:
    """The worker knows the task: the retry takes over the reservation of a message that waits."""
    task = room.task(Runs(retries, None), unique_while=mode)
    waits = task.delay(1).id
    by_name = sender.send_task(task.name, (1,)).id
    assert room.deliver(room.take(by_name))[0] == "RETRY"
    assert task.delay(1).id == by_name
    assert coalesced(room.deliver(room.take(waits))) == by_name
    assert room.deliver(room.take(by_name))[0] == "SUCCESS"


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


def ticks(room: Mailroom, task: str, times: int, **options: Any) -> list[Any]:
    """What beat gets when an entry with these options is due so many times."""
    scheduler = Scheduler(room.app, lazy=True)
    when = celery.schedules.schedule(1)
    one: Any = ScheduleEntry("every", task, None, None, when, (1,), None, options, app=room.app)
    with room.app.producer_pool.acquire(block=True) as producer:
        return [scheduler.apply_async(one, producer, advance=False) for _ in range(times)]


def test_a_duplicate_is_one_line_in_the_log(room: Mailroom, caplog: Any) -> None:
    """Of a message that waits, of another's run, of its own run."""
    task = room.task(unique_while="queued")
    runs: Any = room.task(lambda self, job: called(job), unique_while="unfinished")

    def called(job: int) -> None:
        Meanwhile(lambda: runs.delay(job)).result()
        runs.delay(job)

    caplog.set_level(logging.INFO)
    first, *others = ticks(room, task.name, 3)
    own = runs.delay(1)
    room.deliver(room.take(own.id))
    assert {result.id for result in others} == {first.id}
    *waits, by_another, by_its_run = [each for each in caplog.messages if "was not sent" in each]
    said = "a call of {} was not sent: {} {} already, lock job:1"
    assert waits == [said.format(task.name, first.id, "waits")] * 2
    assert by_another == said.format(runs.name, own.id, "runs")
    assert f"of {runs.name} by its own run {own.id} was not sent, and nothing goes on" in by_its_run
    if celery.VERSION[:2] >= (5, 7):  # From then on beat marks what it sends.
        assert room.waiting()[0].headers["celery_beat_task"] is True


def test_an_entry_of_beat_may_give_the_options_of_a_call(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    ticks(room, task.name, 1, unique_for=86400.0)
    assert reserved_for(room, task) > 43_200
    with pytest.raises(SchedulingError, match="Couldn't apply scheduled task every"):
        ticks(room, task.name, 1, on_duplicate="raise", expires=3600)
    with pytest.raises(SchedulingError, match="there is no option unique_fro"):
        ticks(room, task.name, 1, unique_fro=60)
    assert len(room.waiting()) == 1
