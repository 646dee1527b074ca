"""A locked task with other base classes, which override `apply_async` and `__call__` as well."""

from __future__ import annotations

import abc
from typing import Any

import pytest
from celery import Task
from django.db import transaction

from django_tasklock import InvalidLockConfig, lock
from django_tasklock.celery import LockedTask
from django_tasklock.exceptions import AlreadyQueued
from tests.celery_tasks.conftest import reserved_for
from tests.mailroom import Mailroom

pytestmark = pytest.mark.django_db(transaction=True)


class OnCommit(Task):
    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send later. Returns None, as nobody knows what will be sent."""
        transaction.on_commit(lambda: super(OnCommit, self).apply_async(*args, **options))


class Event:
    """What JSON cannot write; all look alike as text."""

    def __init__(self, pk: int) -> None:
        self.pk = pk

    def __str__(self) -> str:
        return "an event"


class WithEvents(Task):
    """Sends an event as its id, and hands the body the event."""

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Turn events into ids, and leave ids as they are: Celery's retry sends those."""
        args = [getattr(value, "pk", value) for value in args or ()]
        kwargs = {name: getattr(value, "pk", value) for name, value in (kwargs or {}).items()}
        return super().apply_async(args, kwargs, *rest, **options)

    def __call__(self, job: Any, *args: Any) -> Any:
        return super().__call__(Event(job), *args)


class Atomic(Task):
    """Runs in a transaction."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with transaction.atomic():
            return super().__call__(*args, **kwargs)


class Both(WithEvents, OnCommit, LockedTask): ...


class InTransaction(Atomic, Both): ...


# ------------------------------------------------------------------------------ sent on commit


def test_what_is_sent_on_commit_is_reserved_there_and_not_before(room: Mailroom) -> None:
    # Given a class that sends on commit, before ours
    task = room.task(base=Both, unique_while="queued")

    # I expect a call that is rolled back to send nothing, and to reserve nothing
    with transaction.atomic():
        assert task.delay(1) is None
        task.delay_on_commit(1)
        task.apply_async([1], task_id="never sent", countdown=5)
        transaction.set_rollback(True)
    assert room.redis.keys(f"*queued {task.name} *") == []

    # And of the calls of one transaction, made in any way, one to be sent
    for _ in range(2):
        with transaction.atomic():
            for send in (task.delay, lambda job: task.s(job).apply_async(), task.delay_on_commit):
                send(1)
                send(1)
            assert room.waiting() == []
        assert [state for state, _ in room.work_off()] == ["SUCCESS"]


def test_options_of_one_call_reach_the_moment_of_sending(room: Mailroom) -> None:
    task = room.task(base=Both, unique_while="queued")
    with transaction.atomic():
        task.apply_async([1], unique_for=86400, on_duplicate="raise", headers={"mine": 1})
        task.send_anyway([1])
    with pytest.raises(AlreadyQueued), transaction.atomic():
        task.apply_async([1], on_duplicate="raise")
    with pytest.raises(InvalidLockConfig), transaction.atomic():
        task.apply_async([1], on_conflict="skip")
    assert reserved_for(room, task) > 60_000
    message, anyway = room.waiting()
    assert message.headers["mine"] == 1
    assert not {"on_duplicate", "unique_for", "tasklock_anyway"} & {
        *message.headers, *message.embed, *anyway.headers, *anyway.embed,
    }  # fmt: skip
    assert "sent" in message.ours


# ------------------------------------------------------------------------------ other arguments


def work(self: Any, event: Event) -> str:
    return f"{self.lease.name}, {event.pk}"


def test_the_reservation_has_the_name_of_the_run(room: Mailroom) -> None:
    task = room.task(work, base=Both, unique_while="unfinished")
    for _ in range(2):
        task.delay(Event(1))
        task.delay(job=Event(1))
        task.delay(1)
        task.delay(Event(2))
        assert [message.args or message.kwargs for message in room.waiting()] == [[1], [2]]
        assert room.work_off() == [("SUCCESS", "job:1, 1"), ("SUCCESS", "job:2, 2")]
    assert room.redis.keys(f"*queued {task.name} *") == []


# ------------------------------------------------------------------------------ back to the queue


@pytest.mark.parametrize("conflict", ["retry", "coalesce"])
def test_a_waiting_message_is_requeued_with_its_own_arguments(
    room: Mailroom, conflict: str
) -> None:
    """And not at the commit: it ends by `Ignore`, so its transaction is rolled back."""
    task = room.task(work, base=InTransaction, on_conflict=conflict, unique_while="queued")
    with lock("job:1", ttl=60):
        task.delay(Event(1))
        for _ in range(3):
            assert room.deliver(room.take())[0] == "IGNORED"
            assert room.waiting()[0].args == [1]
        task.delay(Event(2))
        assert room.deliver(room.take(room.ids()[1])) == ("SUCCESS", "job:2, 2")
    assert room.work_off() == [("SUCCESS", "job:1, 1")]


def test_its_retries_have_its_own_arguments(room: Mailroom) -> None:
    """Celery's ``autoretry_for``, and ``retry``."""

    def failing(self: Any, event: Event) -> None:
        assert work(self, event) == "job:1, 1"
        if self.request.retries == 1:
            raise self.retry(countdown=0)
        raise LookupError

    task = room.task(
        failing, base=Both, unique_while="unfinished", autoretry_for=(LookupError,),
        max_retries=2, default_retry_delay=0,
    )  # fmt: skip
    task.delay(Event(1))
    states = []
    while room.waiting():
        assert [message.args for message in room.waiting()] == [[1]]
        states.append(room.deliver(room.take())[0])
    assert states == ["RETRY", "RETRY", "FAILURE"]


# ------------------------------------------------------------------------------ order of classes


class Heir(LockedTask): ...


class Defaults(Task):
    """Options for all tasks of a project."""

    lock_ttl = 5


class Mixin:
    """No task."""

    def apply_async(self, *args: Any, **options: Any) -> Any: ...


class Harmless(Task, abc.ABC):
    """A task with what `LockedTask` leaves to others."""

    abstract = True
    reject_on_worker_lost = False
    default_retry_delay = 7

    def on_failure(self, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("after", "has"),
    [
        (OnCommit, "apply_async"),
        (Atomic, "__call__"),
        (WithEvents, "__call__, apply_async"),
        (Defaults, "lock_ttl"),
        (Mixin, "apply_async"),
    ],
)
@pytest.mark.parametrize("ours", [LockedTask, Heir])
def test_a_class_after_ours_is_refused_with_the_order_to_write(
    ours: Any, after: Any, has: str
) -> None:
    said = (
        rf"task X: {after.__name__} comes after LockedTask, and has its own {has}\. "
        rf"LockedTask comes last: class X\({after.__name__}, LockedTask\)"
    )
    with pytest.raises(InvalidLockConfig, match=said):
        type("X", (ours, after), {})
    type("X", (after, LockedTask), {})


def test_a_class_that_has_nothing_of_ours_may_come_after(room: Mailroom) -> None:
    """Also the class that an app makes of Celery's own, with its settings."""
    room.app.Task.bind(room.app)
    made = type("X", (LockedTask, Harmless, room.app.Task), {"abstract": True})
    task = room.task(base=made)
    assert (task.default_retry_delay, task.reject_on_worker_lost) == (7, True)
    task.delay(1)
    assert [state for state, _ in room.work_off()] == ["SUCCESS"]
