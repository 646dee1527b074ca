"""Options of one call: `apply_async(unique_for=…, on_duplicate=…)`, and those that a call cannot
give."""

from __future__ import annotations

import inspect
from datetime import date
from typing import Any

import celery
import pytest
from celery.app.task import Task
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule
from kombu import Producer

from django_tasklock import InvalidLockConfig
from django_tasklock.celery.options import OPTIONS, PER_CALL, check_call
from django_tasklock.exceptions import AlreadyQueued
from tests.mailroom import Mailroom

DAY_SECONDS = 86400.0
TYPOS = {
    "unique_fo": "unique_for",
    "uniqe_for": "unique_for",
    "on_duplicates": "on_duplicate",
    "on_conflit": "on_conflict",
    "lock_tll": "lock_ttl",
    "lock_timeout": None,
    "unique_on": None,
}


def reserved_for(room: Mailroom, task: Any) -> float:
    """Seconds that the reservation of the task's only job lasts from now on."""
    (key,) = room.redis.keys(f"*queued {task.name} *")
    return float(room.redis.pttl(key)) / 1000


def test_an_eta_may_be_whatever_celery_takes(room: Mailroom) -> None:
    task = room.task()
    assert room.ids() == []
    task.apply_async([1], eta=date(2100, 1, 1))
    assert len(room.ids()) == 1


def test_a_call_may_say_what_becomes_of_a_duplicate(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    loud = room.task(unique_while="queued", on_duplicate="raise")
    first, other = task.delay(1), loud.delay(1)
    for ask in (task.apply_async, lambda args, **o: task.s(*args).set(**o).apply_async()):
        with pytest.raises(AlreadyQueued, match=first.id):
            ask([1], on_duplicate="raise")
    assert task.delay(1).id == first.id
    assert loud.apply_async([1], on_duplicate="return").id == other.id
    assert room.ids() == [first.id, other.id]


def test_a_call_may_say_for_how_long_it_is_unique(room: Mailroom) -> None:
    task, plain = room.task(unique_while="queued", unique_for=60), room.task()
    task.apply_async([1], unique_for=DAY_SECONDS, countdown=100, headers={"mine": 1})
    assert DAY_SECONDS < reserved_for(room, task) <= DAY_SECONDS + 100
    message = room.take()
    assert message.headers["mine"] == 1
    assert "unique_for" not in message.headers
    plain.delay(1)
    assert "tasklock_unique_for" not in room.take().headers


def test_a_requeued_message_keeps_the_unique_for_of_its_call(room: Mailroom) -> None:
    """A retry; a message that found its lock taken; one that its run gave back to the broker."""
    ends: list[BaseException] = []

    def work(self: Any, job: Any) -> None:
        if ends:
            raise ends.pop()
        raise self.retry(countdown=0)

    task = room.task(
        work, unique_while="queued", unique_for=60, on_conflict="retry", acks_late=True
    )
    task.apply_async([1], unique_for=DAY_SECONDS)
    for state in ("RETRY", "RETRY"):
        assert room.deliver(room.take())[0] == state
        assert reserved_for(room, task) > DAY_SECONDS / 2
    lease = task.locks.acquire("job:1", ttl=60)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert lease.release()
    assert reserved_for(room, task) > DAY_SECONDS / 2
    ends.append(celery.exceptions.Reject(requeue=True))
    room.deliver(room.take())
    assert reserved_for(room, task) > DAY_SECONDS / 2


def test_the_schedule_of_beat_may_say_it(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    entry = ScheduleEntry(
        "daily",
        task.name,
        schedule=schedule(1),
        args=(1,),
        options={"unique_for": DAY_SECONDS},
        app=room.app,
    )
    with room.app.producer_pool.acquire(block=True) as producer:
        Scheduler(room.app, lazy=True).apply_async(entry, producer, advance=False)
    assert reserved_for(room, task) > DAY_SECONDS / 2


def test_a_message_of_a_group_takes_them_and_is_sent_as_it_is(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    part = task.s(1).set(on_duplicate="raise", unique_for=5)
    assert len(celery.group([part, part])().results) == len(room.waiting()) == 2
    room.app.conf.task_always_eager = True
    assert part.apply_async().get() == "done:1"


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - set(PER_CALL)))
def test_an_option_that_workers_use_is_refused(room: Mailroom, option: str) -> None:
    task = room.task(unique_while="queued")
    calls: list[Any] = [
        lambda: task.apply_async([1], **{option: OPTIONS[option]}),
        lambda: task.s(1).set(**{option: OPTIONS[option]}).delay(),
        lambda: task.apply([1], **{option: OPTIONS[option]}),
    ]
    for call in calls:
        with pytest.raises(InvalidLockConfig, match=f"{task.name}: {option} is an option of the"):
            call()
    assert room.waiting() == []


@pytest.mark.parametrize("option", TYPOS)
def test_a_misspelt_option_is_refused(room: Mailroom, option: str) -> None:
    with pytest.raises(InvalidLockConfig, match=f"there is no option {option}") as no:
        room.task().apply_async([1], **{option: 5})
    assert (f"did you mean {TYPOS[option]}?" in str(no.value)) is (TYPOS[option] is not None)
    assert room.waiting() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"unique_for": 0}, "unique_for: ttl is a number"),
        ({"unique_for": None}, "unique_for: ttl is a number"),
        ({"unique_for": "60"}, "unique_for: ttl is a number"),
        ({"on_duplicate": "skip"}, "on_duplicate is one of return, raise"),
        ({"on_duplicate": None}, "on_duplicate is one of return, raise"),
    ],
)
def test_a_wrong_value_is_refused(room: Mailroom, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidLockConfig, match=says):
        room.task(unique_while="queued").apply_async([1], **options)
    assert room.waiting() == []


@pytest.mark.parametrize("options", [{"unique_for": 60}, {"on_duplicate": "raise"}])
def test_an_option_of_unique_tasks_is_refused_by_other_tasks(
    room: Mailroom, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidLockConfig, match="has no effect: the task has no unique_while"):
        room.task().apply_async([1], **options)


def test_no_option_of_celerys_own_looks_like_ours(room: Mailroom) -> None:
    theirs = {
        *inspect.signature(Task.apply_async).parameters,
        *inspect.signature(Task.apply).parameters,
        *inspect.signature(celery.Celery.send_task).parameters,
        *inspect.signature(Producer.publish).parameters,
        *inspect.signature(room.app.amqp.as_task_v2).parameters,
        *("delivery_mode", "soft_time_limit", "time_limit", "immediate", "mandatory", "priority"),
        *("message_id", "correlation_id", "expiration", "user_id", "app_id", "cluster_id", "type"),
    }
    check_call(room.task(), dict.fromkeys(theirs))


def test_a_stamp_may_have_any_name(room: Mailroom) -> None:
    signature = room.task().s(1)
    signature.stamp(lock_owner="me")
    signature.apply_async()
    assert list(room.take().headers["stamps"]) == ["lock_owner"]
