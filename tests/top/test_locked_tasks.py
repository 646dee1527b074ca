"""``@locked`` on plain functions, as every Django can call them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db.models import F

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LeaseLost,
    LockNotAcquired,
    StatusConflict,
    StoreUnavailable,
    lock,
    locks,
)
from django_tasklock.guards import StatusGuard
from django_tasklock.tasks import locked
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_redis")]

OPTIONS: dict[str, Any] = {
    "pk": "job_id", "source": "queued", "to": "running", "done": "done", "failed": "failed",
}  # fmt: skip
guard = StatusGuard("app.Job", **OPTIONS, fence_field="lock_fence")
without_fence = StatusGuard("app.Job", **OPTIONS)


def status(job: Job) -> str:
    job.refresh_from_db()
    return job.status


def test_function_runs_under_the_lock_and_gets_the_lease_if_it_has_a_parameter_for_it() -> None:
    @locked("video:{video_id}", ttl=LONG)
    def encode(video_id: int, *, quality: str = "high", lease: Lease | None = None) -> Any:
        """Encode."""
        assert lease
        return holder(lease.name).owner.task, lease.name, quality

    task = f"{__name__}.{encode.__qualname__}"
    assert encode(7, quality="low") == (task, "video:7", "low")
    assert not locks.is_locked("video:7")
    assert (encode.__name__, encode.__doc__) == ("encode", "Encode.")
    assert list(inspect.signature(encode).parameters) == ["video_id", "quality"]


def test_run_that_finds_the_lock_taken_is_skipped_and_says_why_or_raises() -> None:
    @locked("video:{video_id}")
    def encode(video_id: int, context: Any = None) -> Any:
        return encode(video_id) if context else "encoded"

    @locked(lambda video_id: f"video:{video_id}", on_conflict="raise")
    def encode_or_raise(video_id: int) -> str:
        return "encoded"

    taken = {
        "status": "skipped", "reason": "already_processing", "lock": "video:7", "holder": None,
    }  # fmt: skip
    with lock("video:7", cooldown=LONG):
        assert encode(7) == taken
        with pytest.raises(LockNotAcquired):
            encode_or_raise(7)
        assert encode(8) == encode_or_raise(8) == "encoded"
    assert encode(7) == taken | {"reason": "cooling_down"}
    # By a task with an id, and by an operator
    own = type("Context", (), {"task_result": type("Result", (), {"id": "the first"})})
    assert encode(9, own) == taken | {"lock": "video:9", "holder": "the first"}
    assert locks.hold("video:8", LONG, "alice", "a migration") is not None
    assert encode(8) == taken | {
        "reason": "held_by_operator", "lock": "video:8",
        "held_by": "alice", "hold_reason": "a migration",
    }  # fmt: skip


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "in_body", "expected"),
    [
        (LookupError("no codec"), True, "failed"),
        (SystemExit(1), True, "queued"),
        (SystemExit(1), False, "queued"),
        (LookupError("no table"), False, "running"),
    ],
)
def test_error_leaves_a_row_that_can_be_seen_or_run_again(
    error: BaseException, in_body: bool, expected: str, is_async: bool
) -> None:
    class Raises(StatusGuard):
        def claim(self, pk: Any, fence: int | None = None) -> bool:
            if not in_body:
                raise error
            return super().claim(pk, fence)

    def work(job_id: int) -> None:
        raise error

    async def work_async(job_id: int) -> None:
        raise error

    job = Job.objects.create(status="running")
    take = locked("job:{job_id}", guard=Raises("app.Job", **OPTIONS))
    with pytest.raises(type(error)):
        async_to_sync(take(work_async))(job.pk) if is_async else take(work)(job.pk)
    assert status(job) == expected
    until(lambda: not locks.is_locked(f"job:{job.pk}"))


def test_lease_that_was_handed_on_is_not_lost() -> None:
    adopted: list[Any] = []

    def work(job_id: int, to: str, *, lease: Lease | None = None) -> str:
        assert lease
        adopted.append(locks.adopt(lease.detach()))
        Job.objects.update(status=to)
        return "worked"

    job = Job.objects.create()
    assert locked("video:{job_id}")(work)(job.pk, "queued") == "worked"
    assert locked("job:{job_id}", guard=guard)(work)(job.pk, "running") == "worked"
    assert status(job) == "done"
    assert all(lease.release() for lease in adopted)
    # A result that does not count is a conflict nevertheless
    Job.objects.update(status="queued")
    with pytest.raises(StatusConflict):
        locked("job:{job_id}", guard=guard)(work)(job.pk, "cancelled")
    assert status(job) == "cancelled"


@pytest.mark.parametrize("own", [guard, without_fence])
def test_row_of_a_run_that_lost_its_lease_is_left_alone(own: StatusGuard) -> None:
    # Given a run that loses its lock, which another run takes, with the row
    others = []

    def lose(job_id: int, *, lease: Lease | None = None) -> None:
        assert lease
        assert locks.clear(lease.name)
        others.append(taken(lease.name))
        assert own.claim(job_id, others[0].fence if own.fence_field else None)
        assert not lease.extend()

    # I expect its result not to count, and the row to be the other's
    job = Job.objects.create()
    with pytest.raises(LeaseLost):
        locked("job:{job_id}", guard=own)(lose)(job.pk)
    assert status(job) == "running"
    assert others[0].held


def test_coroutine_function_runs_under_the_lock() -> None:
    job = Job.objects.create()

    @locked("job:{job_id}", guard=guard)
    async def work(job_id: int) -> Any:
        await Job.objects.filter(pk=job_id).aupdate(done_count=F("done_count") + 1)
        return await locks.ais_locked(f"job:{job_id}")

    with lock(f"job:{job.pk}"):
        assert async_to_sync(work)(job.pk)["reason"] == "already_processing"
    assert async_to_sync(work)(job.pk) is True
    assert (status(job), job.done_count) == ("done", 1)
    assert async_to_sync(work)(job.pk)["reason"] == "invalid_state"
    assert not locks.is_locked(f"job:{job.pk}")


class Slow(StatusGuard):
    """A guard whose UPDATE waits in one place until it may go on."""

    def __init__(self, place: str) -> None:
        super().__init__("app.Job", **OPTIONS)
        self.place, self.reached, self.go_on = place, threading.Event(), threading.Event()

    def wait_if(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            assert self.go_on.wait(PATIENCE)

    def claim(self, pk: Any, fence: int | None = None) -> bool:
        claimed = super().claim(pk, fence)
        self.wait_if("claim")
        return claimed

    def finish(self, pk: Any, fence: int | None = None) -> None:
        self.wait_if("finish")
        super().finish(pk, fence)


@pytest.mark.parametrize("place", ["claim", "body", "finish"])
@pytest.mark.parametrize("times", [1, 20])
def test_coroutine_that_is_cancelled_leaves_its_row_to_the_next_run(place: str, times: int) -> None:
    job, slow = Job.objects.create(), Slow(place)

    @locked("job:{job_id}", guard=slow)
    async def work(job_id: int) -> str:
        if place == "body" and not slow.reached.is_set():
            slow.reached.set()
            await asyncio.get_running_loop().create_future()
        return "worked"

    async def cancel() -> None:
        task = asyncio.create_task(work(job.pk))
        await asyncio.to_thread(until, slow.reached.is_set)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(cancel)()
    until(lambda: not locks.is_locked(f"job:{job.pk}"))
    if times == 1:
        assert status(job) == ("done" if place == "finish" else "queued")
    if place != "finish":
        assert async_to_sync(work)(job.pk) == "worked"
    assert status(job) == "done"


def test_outage_before_the_run_and_after_it(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)
    job = Job.objects.create()

    @locked("job:{job_id}", guard=guard)
    def work(job_id: int) -> str:
        own_redis_server.stop()
        return "worked"

    # A result that is in the row counts, whether the release gets through or not.
    assert work(job.pk) == "worked"
    assert status(job) == "done"
    assert f"a task could not release its lock job:{job.pk} now: " in caplog.text
    Job.objects.update(status="queued")
    with pytest.raises(StoreUnavailable):
        work(job.pk)
    assert status(job) == "queued"


def test_what_cannot_be_meant() -> None:
    def work(number: int) -> None:
        pass

    def generate(number: int) -> Any:
        yield number

    anything: Any = object()
    with pytest.raises(ValueError, match="no such parameter"):
        locked("job:{job}")(work)
    with pytest.raises(InvalidLockConfig, match="'job_id'"):
        locked("job:{number}", guard=guard)(work)
    with pytest.raises(InvalidLockConfig, match="StatusGuard"):
        locked("job:{number}", guard=anything)(work)
    with pytest.raises(TypeError, match="@task"):
        locked("job")(anything)
    with pytest.raises(TypeError, match="generator"):
        locked("job:{number}")(generate)
    for wrong in ({"on_conflict": "retry"}, {"ttl": 0}):
        with pytest.raises(ValueError):
            locked("job", **wrong)
