"""A lock that code inside a Celery task takes records that task, whatever the task's class is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery import Celery

from django_tasklock import LockInfo, lock, locks
from django_tasklock._engine import history
from django_tasklock._values.owner import Owner
from tests.mailroom import Mailroom, elsewhere
from tests.steps import LONG, Meanwhile, taken

ID = "id-7"


def holder(name: str = "video:1") -> LockInfo:
    found = locks.get(name)
    assert found is not None
    return found


def hold() -> LockInfo:
    with lock("video:1"):
        return holder()


def hold_on_a_loop() -> LockInfo:
    async def hold_it() -> LockInfo:
        async with lock("video:1"):
            return holder()

    return asyncio.run(hold_it())


def hold_by_a_verb() -> LockInfo:
    lease = taken("video:1")
    lease.release()
    return LockInfo("video:1", None, None, None, lease.owner, "default", "")


def adopt() -> LockInfo:
    lease = locks.adopt(Meanwhile(lambda: taken("video:1").detach()).result())
    assert lease is not None
    try:
        return holder()
    finally:
        lease.release()


@pytest.fixture
def app() -> Any:
    app = Celery("inside", set_as_current=False, fixups=[], broker="memory://")
    app.conf.update(task_always_eager=True, task_store_eager_result=False)
    return app


@pytest.mark.parametrize("work", [hold, hold_on_a_loop, hold_by_a_verb, adopt])
@pytest.mark.usefixtures("room")
def test_a_lock_in_a_plain_task_has_its_name_and_id(app: Any, work: Any) -> None:
    task = app.task(work, name="plain", shared=False)
    owner = task.apply_async(task_id=ID).get().owner
    assert (owner.task, owner.task_id, owner.inside) == ("plain", ID, True)
    # and outside of it none
    assert (work().owner.task, work().owner.task_id) == (None, None)
    # A function that is called is no task of its own.
    assert (task().owner.task, task().owner.task_id) == (None, None)

    def call() -> Owner:
        found: Owner = task().owner
        return found

    caller = app.task(call, name="caller", shared=False)
    assert caller.apply_async(task_id=ID).get().task == "caller"


def test_a_lock_in_a_locked_task_is_not_the_tasks_own(room: Mailroom) -> None:
    found: list[Any] = []

    def work(self: Any, job: int) -> None:
        found.append(holder(f"job:{job}").owner)
        with lock("video:1"):
            found.append(holder().owner)

    task = room.task(work)
    sent = task.delay(1)
    room.work_off()
    assert [(owner.task, owner.task_id) for owner in found] == [(task.name, sent.id)] * 2
    assert [owner.runs for owner in found] == [True, False]


def test_a_task_that_is_refused_is_found_by_its_id(
    room: Mailroom, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BATCH_SECONDS", LONG)

    def ask() -> bool:
        return locks.acquire("video:1") is None

    task = app.task(ask, name="plain", shared=False)
    with lock("video:1"):
        for number in range(2):
            assert task.apply_async(task_id=f"id-{number}").get()
    for number in range(2):
        (event,) = locks.history(task_id=f"id-{number}")
        assert (event.kind, event.count, event.owner.task) == ("refused", 1, "plain")


def test_a_task_may_take_two_permits(app: Any, room: Mailroom) -> None:
    """Its id does not mean that a permit of it is another delivery of its message."""

    def work() -> bool:
        with lock("pool", slots=2), lock("pool", slots=2, wait=0):
            return True

    assert app.task(work, name="plain", shared=False).apply_async(task_id=ID).get() is True


def test_a_call_is_no_duplicate_of_a_lock_inside_a_run_of_its_task(room: Mailroom) -> None:
    """That run does not do the work of the call."""

    def work(self: Any, job: int) -> None:
        if job == 1:
            with lock("job:2"):
                task.delay(2)

    task = room.task(work, unique_while="unfinished")
    task.delay(1)
    assert len(room.work_off()) == 2


def test_a_redelivery_is_not_skipped_because_of_a_lock_inside_a_task(
    room: Mailroom, app: Any
) -> None:
    """Its run may have begun and died, and the holder does not do its work."""
    task = room.task(acks_late=True)
    task.delay(1)
    message = room.take()

    def work() -> str:
        with lock("job:1", ttl=LONG):
            return str(elsewhere(room, message, redelivered=True)[0])

    assert app.task(work, name="plain", shared=False).apply_async(task_id=ID).get() == "IGNORED"
    assert [state for state, _ in room.work_off()] == ["SUCCESS"]
