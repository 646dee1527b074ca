"""What becomes of calls that do not run: the signal `task_not_run`, and in the history each skip,
with the reason and the holder; and a warning of a job that sends its own next run in vain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_tasklock import LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.celery import by
from django_tasklock.exceptions import AlreadyQueued
from django_tasklock.signals import OUTCOMES, lock_acquired, lock_released, task_not_run
from django_tasklock.tasks import locked
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import held_elsewhere, job_guard, loses_its_lease
from tests.inside import keep_events_for
from tests.mailroom import Mailroom, Message, elsewhere
from tests.steps import LONG, sent

Told = list[dict[str, Any]]
PATIENT_NO_MORE = {"on_conflict": "retry", "lock_retry_for": 0}


@pytest.fixture(autouse=True)
def _all_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens is of one second."""
    keep_events_for(monkeypatch, LONG)


@pytest.fixture
def told() -> Iterator[Told]:
    """What receivers of `task_not_run` are told. Another one fails, which changes nothing."""

    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of somebody's")

    task_not_run.connect(broken)
    with sent(task_not_run) as told:
        yield told
    task_not_run.disconnect(broken)


def outcomes(told: Told) -> list[tuple[str, str]]:
    """Each outcome with its reason; all of them are of the closed set."""
    assert all(one["reason"] in OUTCOMES[one["outcome"]] for one in told)
    return [(one["outcome"], one["reason"]) for one in told]


def skip_of(task_id: str) -> Any:
    """The one skip of a task id in the history."""
    (event,) = [event for event in locks.history(task_id=task_id) if event.kind == "skipped"]
    assert (event.owner.task_id, event.count, event.store) == (task_id, 1, "default")
    return event


@pytest.mark.parametrize(
    ("options", "while_", "state", "outcome", "reason"),
    [
        ({}, "", "SUCCESS", None, None),
        ({}, "held", "SUCCESS", "skipped", "already_processing"),
        ({}, "on hold", "IGNORED", "requeued", "held"),
        ({}, "cooling", "SUCCESS", "skipped", "cooling_down"),
        ({"on_conflict": "retry"}, "held", "IGNORED", "requeued", "held"),
        ({"on_conflict": "coalesce"}, "held", "IGNORED", "requeued", "held"),
        ({"on_conflict": "raise"}, "held", LockNotAcquired, "given_up", "held"),
        (PATIENT_NO_MORE, "held", LockNotAcquired, "given_up", "held"),
        ({}, "an outage", "IGNORED", "requeued", "outage"),
        ({"on_outage": "raise"}, "an outage", StoreUnavailable, "given_up", "outage"),
    ],
)
def test_of_a_message_that_does_not_run_it_is_told_why(
    room: Mailroom, told: Told, options: dict[str, Any], while_: str, state: Any, outcome: Any,
    reason: Any,
) -> None:  # fmt: skip
    # Given a message that does not get its lock, or gets it
    message = room.message(**options)
    if while_ == "held":
        held_elsewhere()
    elif while_ == "on hold":
        locks.hold("job:1", LONG, "alice", "a migration")
    elif while_ == "cooling":
        with lock("job:1", cooldown=LONG):
            pass
    with outage() if while_ == "an outage" else ExitStack():
        ended, value = room.deliver(message)
    assert state in (ended, type(value))

    # I expect receivers to be told once what became of it, of which task, and why
    assert outcomes(told) == ([(outcome, reason)] if outcome else [])
    for one in told:
        assert (one["task"], one["task_id"], one["store"]) == (message.task, message.id, "default")
        assert (one["name"], one["template"]) == ("job:1", "job:{job}")
        assert one["sender"] is type(room.app.tasks[message.task])

    # And the history to have it, if it was no pause: as one event, which says who had the lock, and
    # how long it was waited for
    happened = locks.history(task_id=message.id)
    if outcome == "given_up":
        (event,) = happened
        assert (event.kind, event.name, event.reason) == ("given up", "job:1", reason)
        assert (event.owner.task, event.store) == (message.task, "default")
        assert (event.holder is None, event.seconds is None) == (reason != "held",) * 2
    if outcome == "skipped":
        event = skip_of(message.id)
        assert (event.name, event.reason, event.owner.task) == ("job:1", reason, message.task)
        assert event.holder.held_by is None
        assert (len(happened), event.seconds is None) == (1, False)


def test_a_skip_names_the_task_that_holds_the_lock_and_two_skips_are_two_events(
    room: Mailroom,
) -> None:
    skipped: list[Message] = []
    task = room.task(lambda self, job: [elsewhere(room, each) for each in skipped])
    first = task.delay(1)
    message = room.take()
    for _ in range(2):
        task.delay(1)
        skipped.append(room.take())
    assert room.deliver(message)[0] == "SUCCESS"
    for each in skipped:
        holder = skip_of(each.id).holder
        assert (holder.task, holder.task_id) == (task.name, first.id)
    assert len([event for event in locks.history() if event.kind == "skipped"]) == 2


def test_a_row_without_work_is_in_the_history(room: Mailroom, told: Told, row: Job) -> None:
    Job.objects.update(status="done")
    message = room.message(job=row.pk, guard=job_guard())
    room.deliver(message)
    event = skip_of(message.id)
    assert (event.name, event.reason, event.holder) == (f"job:{row.pk}", "invalid_state", None)
    assert outcomes(told) == [("skipped", "invalid_state")]


def test_coalesced_and_debounced_calls_name_who_does_their_work(room: Mailroom, told: Told) -> None:
    task = room.task(on_conflict="coalesce")
    other, follow_up = task.delay(1), task.delay(1)
    with lock("job:1", ttl=LONG):
        for each in (follow_up, other):
            elsewhere(room, room.take(each.id))
    assert outcomes(told) == [("requeued", "held"), ("coalesced", "follow_up")]
    assert skip_of(other.id).reason == "coalesced"
    assert [event.kind for event in locks.history(task_id=follow_up.id)] == ["refused"]
    task = room.task(debounce=0.01, lock_name="burst:{job}")
    first, last = task.delay(1), task.delay(1)
    room.work_off()
    event = skip_of(first.id)
    assert (event.reason, event.holder.task_id) == ("debounced", last.id)


def test_a_duplicate_is_told_by_its_sender(room: Mailroom, told: Told) -> None:
    task = room.task(unique_while="queued", on_duplicate="raise")
    first = task.delay(1)
    with pytest.raises(AlreadyQueued):
        task.delay(1)
    assert outcomes(told) == [("duplicate", "queued")]
    assert told[0]["task_id"] == first.id


def test_a_run_that_lost_its_lease_is_requeued_and_at_last_given_up(
    room: Mailroom, told: Told
) -> None:
    result = room.task(loses_its_lease, acks_late=True, lock_max_attempts=1).delay(1)
    assert room.states() == ["IGNORED", "FAILURE"]
    assert outcomes(told) == [("requeued", "lease_lost"), ("given_up", "too_many_attempts")]
    event = locks.history(task_id=result.id)[0]
    assert (event.kind, event.reason) == ("given up", "too_many_attempts")


def test_a_redelivery_of_a_run_that_has_ended_is_dropped(room: Mailroom, told: Told) -> None:
    message = room.message(acks_late=True)
    assert room.deliver(message)[0] == "SUCCESS"
    assert told == []
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert outcomes(told) == [("dropped", "redelivery")]


@pytest.mark.parametrize("lock_name", ["job:{job}", by("job"), None])
def test_the_lease_of_a_run_has_the_template_an_adopted_one_too(
    room: Mailroom, lock_name: Any
) -> None:
    task = room.task(lock_name=lock_name)
    task.delay(1)
    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        assert room.states() == ["SUCCESS"]
    task.apply_async((1,), lease=locks.acquire(task.lock_name_of((1,), {})))
    with sent(lock_released) as adopted:
        assert room.states() == ["SUCCESS"]
    told = [*acquired, *released, *adopted]
    assert [one["template"] for one in told] == [task.naming.template] * 3


def test_a_direct_call_under_a_hold_is_skipped_and_says_by_whom_and_why(room: Mailroom) -> None:
    task = room.task()
    assert locks.hold("job:1", LONG, "alice", "a migration") is not None
    assert task(1)["reason"] == "held_by_operator"
    (event,) = [event for event in locks.history("job:1") if event.kind == "skipped"]
    assert (event.reason, event.owner.task) == ("held_by_operator", task.name)
    assert event.holder is not None
    assert (event.holder.held_by, event.holder.reason) == ("alice", "a migration")


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_skip_of_a_django_task_is_in_the_history_too(asynchronous: bool) -> None:
    class Context:
        class task_result:
            id = "id-1"

    @locked("job:{job}")
    def work(context: Any, job: int) -> None: ...

    @locked("job:{job}")
    async def work_async(context: Any, job: int) -> None: ...

    assert locks.hold("job:1", LONG, "alice", "a migration") is not None
    if asynchronous:
        asyncio.run(work_async(Context(), 1))
    else:
        work(Context(), 1)
    event = skip_of("id-1")
    assert (event.name, event.reason) == ("job:1", "held_by_operator")
    assert (event.holder.held_by, event.holder.reason) == ("alice", "a migration")


# ------------------------------------------------------------------------------ its own next run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_conflict": "retry"}, ""),
        ({"on_conflict": "coalesce"}, ""),
        ({"on_conflict": "retry", "unique_while": "queued"}, ""),
        ({"on_conflict": "coalesce", "unique_while": "queued"}, ""),
        ({"on_conflict": "run"}, ""),
        ({"debounce": 0.001}, ""),
        ({}, "the run that sent it holds the lock job:1, and nothing goes on with it"),
        ({"unique_while": "queued"}, "the run that sent it holds the lock job:1"),
        ({"unique_while": "unfinished"}, "was not sent, and nothing goes on with it, lock job:1"),
        (
            {"unique_while": "unfinished", "on_conflict": "retry"},
            'Use unique_while="queued" with on_conflict="retry" or "coalesce"',
        ),
    ],
)
def test_a_job_that_sends_itself_ends_elsewhere_with_a_warning_that_has_the_mend(
    room: Mailroom, caplog: pytest.LogCaptureFixture, options: dict[str, Any], said: str
) -> None:
    """Where a refused message waits, the job goes on without one."""
    caplog.set_level(logging.WARNING, "django_tasklock")
    ran: list[int] = []

    # Given a job that is to have three runs, each sent and delivered while the one before works
    def poll(self: Any, job: int, number: int = 1) -> None:
        ran.append(number)
        if number < 3:
            self.delay(job, number + 1)
            if room.ids():
                elsewhere(room, room.take())

    room.register(poll, bind=True, name="poll", lock_name="job:{job}", **options).delay(1)
    room.work_off()
    warned = [text for text in caplog.messages if "on_conflict=" in text or said]
    assert (len(ran), len(warned)) == ((1, 1) if said else (3, 0)), warned
    assert said in "".join(warned)


def test_a_duplicate_of_another_call_is_no_warning(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    # Sent before, by nobody's run.
    task = room.task(lambda self, job: elsewhere(room, room.take()))
    unique = room.task(unique_while="queued")
    for _ in range(2):
        task.delay(1)
    room.deliver(room.take())
    for _ in range(2):
        unique.delay(2)
    assert len(room.ids()) == 1
    assert caplog.messages == []
