"""LockedTask without a worker: called directly, and eagerly; its name, its permits, its store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from django.test.utils import override_settings

from django_tasklock import LeaseLost, LockInfo, LockNotAcquired, lock, locks
from django_tasklock.celery import LockedTask
from django_tasklock.stores.base import BaseStore
from tests.celery_tasks.conftest import HOW, MakeTask, call, lose
from tests.conftest import UseRedis
from tests.inside import asked, keep_events_for, owner_record
from tests.mailroom import Mailroom, elsewhere, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, all_of, held_by, holder, taken, waiting
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def process(self: Any, video: Any, how: str = "hls") -> str:
    self.lease.assert_held()
    assert holder(self.lease.name).token == self.lease.token
    return f"{video} as {how}"


@HOW
def test_a_body_runs_under_the_lock(task: MakeTask, how: str) -> None:
    # Given a task that is called in this process, I expect its body to have the lock
    made = task(process)
    assert call(made, how, 7) == "7 as hls"

    # And the lock to be free after it, and the task to have no lease
    assert not locks.is_locked("video:7")
    with pytest.raises(RuntimeError, match="holds no lease"):
        _ = made.lease

    # And arguments that do not fit to be the error that they are for any function
    with pytest.raises(TypeError):
        made(7, colour="red")

    # And a way past the lock, for who knows better
    def body(self: Any, video: int) -> str:
        return "ran"

    taken("video:7")
    assert task(body).run(7) == "ran"


@HOW
@pytest.mark.parametrize("error", [KeyError, LeaseLost])
def test_an_error_or_a_lost_lease_is_no_success_and_leaves_no_lock(
    task: MakeTask, how: str, error: type[Exception]
) -> None:
    def work(self: Any, video: int) -> str:
        if error is KeyError:
            raise KeyError(video)
        assert locks.clear(self.lease.name)
        return "not so"

    with pytest.raises(error):
        call(task(work), how, 7)
    assert not locks.is_locked("video:7")


def test_the_owner_names_the_task_and_its_id(task: MakeTask) -> None:
    def look(self: Any, video: int) -> list[Any]:
        owner = holder("video:7").owner
        return [owner.task, owner.task_id, owner.runs]

    made = task(look)
    assert made.apply((7,), task_id="id-1").get() == ["videos.look", "id-1", True]
    assert made(7)[:2] == ["videos.look", None]


# ------------------------------------------------------------------------------ conflicts


def test_a_skipped_call_returns_a_plain_marker(task: MakeTask) -> None:
    marker = {"status": "skipped", "reason": "already_processing", "lock": "video:7"}
    asked("video:7", ttl=LONG, task="videos.process", task_id="id-1")
    made = task(process)
    for said in (made(7), made.delay(7).get()):
        assert json.loads(json.dumps(said)) == marker | {"holder": "id-1"}
    assert made(8) == "8 as hls"
    locks.clear("video:7")
    taken("video:7")
    assert made(7) == marker | {"holder": None}, "a holder that is no task has no id"


@HOW
@pytest.mark.parametrize("on_conflict", ["raise", "retry"])
def test_a_call_without_a_queue_to_go_back_to_raises(
    task: MakeTask, on_conflict: str, how: str
) -> None:
    lease = taken("video:7")
    with pytest.raises(LockNotAcquired) as refused:
        call(task(process, on_conflict=on_conflict), how, 7)
    assert refused.value.holder is not None
    assert refused.value.holder.token == lease.token


def test_an_operators_hold_is_a_holder_with_a_name_and_a_reason(task: MakeTask) -> None:
    assert locks.hold("video:7", LONG, "alice", "a migration") is not None
    marker = {
        "status": "skipped", "reason": "held_by_operator", "lock": "video:7", "holder": None,
        "held_by": "alice", "hold_reason": "a migration",
    }  # fmt: skip
    made = task(process)
    assert json.loads(json.dumps([made(7), made.delay(7).get()])) == [marker] * 2
    with pytest.raises(LockNotAcquired, match=r"operator alice \(a migration\)"):
        task(process, on_conflict="raise", name="raises")(7)
    waits = Meanwhile(lambda: task(process, lock_wait=LONG, name="waits")(7))
    until(lambda: waiting("video:7") == 1)
    assert locks.clear("video:7")
    assert waits.result() == "7 as hls"


def test_another_store_is_another_lock(task: MakeTask) -> None:
    def look(self: Any, video: int) -> bool:
        return locks.using("other").is_locked("video:7")

    taken("video:7")
    with override_settings(TASKLOCK={"default": {}, "other": {"KEY_PREFIX": "other"}}):
        assert task(look, lock_store="other")(7) is True


def test_links_groups_and_chords_go_on_under_one_lock_and_after_a_skip(task: MakeTask) -> None:
    def collect(self: Any, results: list[Any], video: int) -> int:
        return len(results)

    made = task(process)
    result: Any = chain(made.si(7), made.si(7, "dash")).apply()
    assert (result.get(), result.parent.get()) == ("7 as dash", "7 as hls")
    taken("video:7")
    assert chain(made.si(7), made.si(8)).apply().get() == "8 as hls"
    parts = group(made.si(7), made.si(8))
    assert [type(each) for each in parts.apply().get()] == [dict, str]
    assert chord(parts, task(collect).s(9)).apply().get() == 2


# ------------------------------------------------------------------------------ again


@HOW
@pytest.mark.parametrize("slots", [1, 2])
def test_a_task_that_calls_itself_keeps_its_lock(task: MakeTask, how: str, slots: int) -> None:
    def again(self: Any, video: int, left: int = 2) -> list[str]:
        mine = self.lease.token, self.lease.slot
        inner = call(again_task, how, video, left - 1) if left else []
        assert (self.lease.token, self.lease.slot) == mine
        assert self.lease.held
        return [mine, *inner]

    again_task = task(again, lock_slots=slots)
    tokens = again_task(7)
    assert (len(tokens), len({*tokens})) == (3, 1)
    assert locks.list() == []


def test_another_thread_is_not_let_in(task: MakeTask) -> None:
    def again(self: Any, video: int, inner: bool = False) -> Any:
        return "ran" if inner else all_of(lambda: again_task(video, True))[0]

    again_task = task(again)
    assert again_task(7)["reason"] == "already_processing"


# ------------------------------------------------------------------------------ lock_slots


def another_runs(task: str, task_id: str) -> str:
    """A run on another machine, with the first of two permits. Returns the lease's token."""
    record = {**owner_record(task, task_id), "boot": "another-machine", "slots": 2}
    return held_by(record, "job:1#1")


def test_as_many_run_as_the_callable_says(room: Mailroom) -> None:
    slots: list[Any] = []
    outcomes: list[Any] = []

    def work(self: Any, job: Any) -> None:
        slots.append(self.lease.slot)
        if len(slots) < 4:
            made.delay(job)
            outcomes.append(elsewhere(room, room.take()))

    made = room.task(work, lock_slots=lambda job, other: 3 if job == "large" else 2)
    for job, seen in (("small", [1, 2]), ("large", [1, 2, 3])):
        slots.clear()
        made.delay(job)
        assert room.deliver(room.take())[0] == "SUCCESS"
        assert slots == seen
    _, marker = outcomes[0]
    assert (marker["reason"], marker["lock"]) == ("already_processing", "job:small")
    assert marker["holder"]
    assert locks.list() == []


@pytest.mark.parametrize("redelivered", [True, False])
def test_a_message_does_not_get_another_permit_beside_its_own_run(
    room: Mailroom, redelivered: bool
) -> None:
    message = room.message(lock_slots=2, acks_late=True)
    token = another_runs(message.task, message.id)
    assert room.deliver(message, redelivered=redelivered)[0] == "IGNORED"
    assert room.ids() == [message.id]
    assert not locks.is_locked("job:1#2")
    # When that run is over without an end, the message runs.
    assert locks.clear("job:1#1", token)
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_who_is_refused_a_permit_may_be_retried_or_raise(room: Mailroom) -> None:
    held = [taken("job:1", slots=2) for _ in range(2)]
    assert room.deliver(room.message(lock_slots=2, on_conflict="retry"))[0] == "IGNORED"
    waits = room.take()
    error = room.fails(room.message(lock_slots=2, on_conflict="raise"), LockNotAcquired)
    assert error.name == "job:1"
    held[0].release()
    assert room.deliver(waits) == ("SUCCESS", "done:1")


def test_a_run_that_lost_its_permit_starts_over_though_another_has_that_one(room: Mailroom) -> None:
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.lease.slot)
        if len(runs) == 1:
            lose(self.lease)
            another_runs(self.name, "another message")
            self.lease.assert_held()

    room.task(work, lock_slots=2, acks_late=True).delay(1)
    assert room.states() == ["IGNORED", "SUCCESS"]
    assert runs == [1, 2]
    assert holder("job:1#1").owner.task_id == "another message"


# ------------------------------------------------------------------------------ locks inside


def held_in(block: Any) -> LockInfo:
    with block:
        return holder("inside")


async def held_on_a_loop() -> LockInfo:
    async with lock("inside"):
        return holder("inside")


WAYS: dict[str, Callable[[], LockInfo]] = {
    "a block": lambda: held_in(lock("inside")),
    "a block on a loop": lambda: asyncio.run(held_on_a_loop()),
    "a verb": lambda: held_in(taken("inside")),
    "adopted": lambda: held_in(locks.adopt(Meanwhile(lambda: taken("inside").detach()).result())),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_lock_inside_a_task_of_any_class_records_the_task_and_its_id(app: Any, way: str) -> None:
    def work() -> LockInfo:
        return WAYS[way]()

    plain = app.task(work, name="plain", shared=False)
    owner = plain.apply_async(task_id="id-7").get().owner
    assert (owner.task, owner.task_id, owner.inside) == ("plain", "id-7", True)
    assert work().owner.task is None
    # A function that is called is no task of its own.
    assert (plain().owner.task, plain().owner.task_id) == (None, None)

    def call_plain() -> Any:
        return plain().owner.task

    caller = app.task(call_plain, name="caller", shared=False)
    assert caller.apply_async(task_id="id-7").get() == "caller"
    locked = app.task(work, name="locked", base=LockedTask, shared=False)
    owner = locked.apply_async(task_id="id-7").get().owner
    assert (owner.task, owner.task_id, owner.runs) == ("locked", "id-7", False)


def test_a_lock_inside_a_task_is_no_run_of_it(
    room: Mailroom, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does no call's work, and the task may take two permits. Who is refused is found by id."""
    keep_events_for(monkeypatch, LONG)
    unique = room.task(lambda self, job: hold_next(job), unique_while="unfinished")

    def hold_next(job: int) -> None:
        with lock(f"job:{job + 1}"):
            assert job > 1 or unique.delay(job + 1).id != unique.request.id

    unique.delay(1)
    assert len(room.work_off()) == 2
    message = room.message(acks_late=True)

    def work() -> str:
        with lock("pool", slots=2), lock("pool", slots=2, wait=0):
            pass
        with lock("job:1", ttl=LONG):
            return str(elsewhere(room, message, redelivered=True)[0])

    plain = app.task(work, name="plain", shared=False)
    assert plain.apply_async(task_id="id-7").get() == "IGNORED"
    assert room.states() == ["SUCCESS"]

    def ask() -> Any:
        return locks.acquire("busy")

    asks = app.task(ask, name="asks", shared=False)
    with lock("busy"):
        assert asks.apply_async(task_id="id-8").get() is None
    (event,) = locks.history(task_id="id-8")
    assert (event.kind, event.count, event.owner.task) == ("refused", 1, "asks")


# ------------------------------------------------------------------------------ each store


def test_what_tasks_keep_is_kept_in_each_store(
    each_store: BaseStore, redis_server: RedisServer
) -> None:
    """The lock, the note of a run that has ended, the reservation. The broker is Redis."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> str:
        runs.append(self.request.id)
        assert holder("job:1").token == self.lease.token
        _, skipped = elsewhere(room, other)
        assert skipped["reason"] == "already_processing"
        return "ran"

    with mailroom(redis_server.url) as room:
        task = room.task(work, acks_late=True, ignore_result=True)
        task.delay(1)
        task.delay(1)
        message, other = room.take(), room.take()
        assert room.deliver(message, redelivered=True) == ("SUCCESS", "ran")
        assert not locks.is_locked("job:1")
        for redelivered in (True, False):
            assert room.deliver(message, redelivered=redelivered)[0] == "IGNORED"
        assert runs == [message.id]
        unique = room.task(unique_while="queued")
        first = unique.delay(1)
        assert unique.delay(1).id == first.id
        assert room.work_off() == [("SUCCESS", "done:1")]
        assert unique.delay(1).id != first.id
