"""Why was this task skipped? The history has each skip, with the reason and the holder."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_tasklock import Event, lock, locks
from django_tasklock._engine import history
from django_tasklock.guards import StatusGuard
from django_tasklock.tasks import locked
from tests.app.models import Job
from tests.mailroom import Mailroom, elsewhere
from tests.steps import LONG

pytestmark = pytest.mark.django_db(transaction=True)
GUARD = StatusGuard("app.Job", pk="job", source="queued", to="working", done="done")


@pytest.fixture(autouse=True)
def _all_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens is of one second."""
    monkeypatch.setattr(history, "BATCH_SECONDS", LONG)


def skip_of(task_id: str) -> Event:
    (event,) = [event for event in locks.history(task_id=task_id) if event.kind == "skipped"]
    assert event.owner.task_id == task_id
    return event


def test_already_processing_with_the_task_that_holds_the_lock(room: Mailroom) -> None:
    seen: list[Event] = []

    def work(self: Any, job: int) -> None:
        second = task.delay(job)
        elsewhere(room, room.take())
        seen.append(skip_of(second.id))

    task = room.task(work)
    first = task.delay(1)
    assert room.deliver(room.take())[0] == "SUCCESS"
    (event,) = seen
    assert (event.name, event.reason, event.store) == ("job:1", "already_processing", "default")
    assert event.owner.task == task.name
    assert event.holder is not None
    assert (event.holder.task, event.holder.task_id) == (task.name, first.id)


def test_held_by_operator_with_who_and_why(room: Mailroom) -> None:
    assert locks.hold("job:1", LONG, "alice", "a migration") is not None
    sent = room.task().delay(1)
    room.deliver(room.take())
    event = skip_of(sent.id)
    assert event.reason == "held_by_operator"
    assert event.holder is not None
    assert (event.holder.held_by, event.holder.reason) == ("alice", "a migration")


def test_cooling_down(room: Mailroom) -> None:
    task = room.task(lock_cooldown=LONG)
    first, second = task.delay(1), task.delay(1)
    room.work_off()
    event = skip_of(second.id)
    assert event.reason == "cooling_down"
    assert event.holder is not None
    assert event.holder.task_id == first.id


def test_invalid_state(room: Mailroom) -> None:
    job = Job.objects.create(status="done")
    sent = room.task(guard=GUARD).delay(job.pk)
    room.deliver(room.take())
    event = skip_of(sent.id)
    assert (event.name, event.reason, event.holder) == (f"job:{job.pk}", "invalid_state", None)


def test_coalesced(room: Mailroom) -> None:
    task = room.task(on_conflict="coalesce")
    follow_up, other = task.delay(1), task.delay(1)
    with lock("job:1", ttl=LONG):
        for _ in range(2):
            elsewhere(room, room.take())
    assert skip_of(other.id).reason == "coalesced"
    assert [event.kind for event in locks.history(task_id=follow_up.id)] == ["refused"]


def test_debounced_with_the_call_that_replaces_it(room: Mailroom) -> None:
    task = room.task(debounce=0.01)
    first, last = task.delay(1), task.delay(1)
    room.work_off()
    event = skip_of(first.id)
    assert event.reason == "debounced"
    assert event.holder is not None
    assert (event.holder.task, event.holder.task_id) == (task.name, last.id)


def test_two_skips_of_one_second_are_two_events(room: Mailroom) -> None:
    task = room.task()
    sent = [task.delay(1) for _ in range(2)]
    with lock("job:1", ttl=LONG):
        for _ in sent:
            room.deliver(room.take())
    for each in sent:
        assert skip_of(each.id).count == 1
    assert len([event for event in locks.history() if event.kind == "skipped"]) == 2


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_django_task(asynchronous: bool) -> None:
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
    assert event.holder is not None
    assert event.holder.held_by == "alice"
