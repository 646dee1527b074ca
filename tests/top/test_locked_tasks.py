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
from tests.steps import LONG, Meanwhile, holder
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def redis(use_redis: UseRedis) -> None:
    use_redis()


def guard(**options: Any) -> StatusGuard:
    own: dict[str, Any] = {
        "pk": "job_id", "source": "queued", "to": "running", "done": "done", "failed": "failed",
        "fence_field": "lock_fence",
    }  # fmt: skip
    return StatusGuard("app.Job", **own | options)


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


def test_guard_claims_and_finishes_the_row() -> None:
    job = Job.objects.create()

    @locked("job:{job_id}", guard=guard())
    def work(job_id: int, *, lease: Lease | None = None) -> Any:
        row = Job.objects.get(pk=job_id)
        assert lease
        assert row.lock_fence == lease.fence
        return row.status

    assert work(job.pk) == "running"
    assert status(job) == "done"
    assert work(job_id=job.pk)["reason"] == "invalid_state"
    # A dead run may have left it
    Job.objects.update(status="running")
    assert work(job.pk) == "running"
    assert status(job) == "done"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "place", "expected"),
    [
        (LookupError("no codec"), "body", "failed"),
        (SystemExit(1), "body", "queued"),
        (SystemExit(1), "after claim", "queued"),
        (LookupError("no table"), "instead of claim", "running"),
    ],
)
def test_error_leaves_a_row_that_can_be_seen_or_run_again(
    error: BaseException, place: str, expected: str, is_async: bool, caplog: Any
) -> None:
    class Raises(StatusGuard):
        def claim(self, pk: Any, fence: int | None = None) -> bool:
            if place == "instead of claim":
                raise error
            assert super().claim(pk, fence)
            if place == "after claim":
                raise error
            return True

    def work(job_id: int) -> None:
        raise error

    async def work_async(job_id: int) -> None:
        raise error

    job = Job.objects.create(status="running")
    own = Raises(
        "app.Job", pk="job_id", source="queued", to="running", done="done", failed="failed"
    )
    take = locked("job:{job_id}", guard=own)
    with pytest.raises(type(error)):
        async_to_sync(take(work_async))(job.pk) if is_async else take(work)(job.pk)
    assert status(job) == expected
    assert "could not change" not in caplog.text
    until(lambda: not locks.is_locked(f"job:{job.pk}"))


def test_result_without_the_lease_does_not_count() -> None:
    @locked("video:{video_id}", ttl=LONG)
    def encode(video_id: int, *, noticed: bool, lease: Lease | None = None) -> str:
        assert lease
        assert locks.clear("video:7")
        assert not noticed or not lease.extend()
        return "encoded"

    for noticed in (True, False):
        with pytest.raises(LeaseLost):
            encode(7, noticed=noticed)


def test_lease_that_was_handed_on_is_not_lost() -> None:
    job, adopted = Job.objects.create(), []

    def work(job_id: int, *, lease: Lease | None = None) -> str:
        assert lease
        adopted.append(locks.adopt(lease.detach()))
        return "worked"

    def change(job_id: int, *, lease: Lease | None = None) -> None:
        assert lease
        if len(adopted) == 2:
            adopted.append(locks.adopt(lease.detach()))
        Job.objects.update(status="cancelled")

    # Without a guard, and with one
    assert locked("video:{job_id}")(work)(7) == "worked"
    assert locked("job:{job_id}", guard=guard())(work)(job.pk) == "worked"
    assert status(job) == "done"
    assert all(lease and lease.release() for lease in adopted)
    # A result that does not count is a conflict, whether the lease was handed on or not
    for _ in range(2):
        Job.objects.update(status="queued")
        with pytest.raises(StatusConflict):
            locked("job:{job_id}", guard=guard())(change)(job.pk)
        assert status(job) == "cancelled"
        assert adopted[-1]
        adopted[-1].release()


@pytest.mark.parametrize("fence_field", ["lock_fence", None])
def test_row_of_another_run_is_left_alone(fence_field: str | None) -> None:
    # Given a run that loses its lock, which another run takes, with the row
    job = Job.objects.create()
    others = locked("job:{job_id}", guard=guard(fence_field=fence_field))
    go_on, started = threading.Event(), threading.Event()

    @others
    def other(job_id: int) -> str:
        started.set()
        assert go_on.wait(PATIENCE)
        return "the other's"

    def lose(job_id: int, *, lease: Lease | None = None) -> str:
        assert lease
        assert locks.clear(lease.name)
        running.append(Meanwhile(lambda: other(job_id)))
        assert started.wait(PATIENCE)
        assert not lease.extend()
        return "too late"

    running: list[Meanwhile[str]] = []
    # I expect its result not to count, and the row to be the other's
    with pytest.raises(LeaseLost):
        others(lose)(job.pk)
    assert status(job) == "running"
    go_on.set()
    assert running[0].result() == "the other's"
    assert status(job) == "done"


def test_row_of_a_run_that_lost_its_lease_is_left_to_the_next_one() -> None:
    """Without a fence only the lock would show whether another run has it."""
    job = Job.objects.create()

    @locked("job:{job_id}", guard=guard(fence_field=None))
    def work(job_id: int, lose: bool, *, lease: Lease | None = None) -> None:
        assert lease
        if lose:
            assert locks.clear(lease.name)
            assert not lease.extend()

    with pytest.raises(LeaseLost):
        work(job.pk, lose=True)
    assert status(job) == "running"
    work(job.pk, lose=False)
    assert status(job) == "done"


def test_coroutine_function_runs_under_the_lock() -> None:
    job = Job.objects.create()

    @locked("job:{job_id}", guard=guard())
    async def work(job_id: int, fail: bool = False) -> bool:
        await Job.objects.filter(pk=job_id).aupdate(done_count=F("done_count") + 1)
        if fail:
            raise LookupError("no codec")
        return await asyncio.to_thread(locks.is_locked, f"job:{job_id}")

    with lock(f"job:{job.pk}"):
        assert async_to_sync(work)(job.pk)["reason"] == "already_processing"  # type: ignore[index]
    assert async_to_sync(work)(job.pk) is True
    assert status(job) == "done"
    assert async_to_sync(work)(job.pk)["reason"] == "invalid_state"  # type: ignore[index]
    Job.objects.update(status="queued")
    with pytest.raises(LookupError):
        async_to_sync(work)(job.pk, fail=True)
    assert (status(job), job.done_count) == ("failed", 2)
    until(lambda: not locks.is_locked(f"job:{job.pk}"))


class Slow(StatusGuard):
    """A guard whose UPDATE waits in one place until it may go on."""

    def __init__(self, place: str) -> None:
        super().__init__(
            "app.Job", pk="job_id", source="queued", to="running", done="done", failed="failed"
        )
        self.place, self.reached, self.go_on = place, threading.Event(), threading.Event()

    def wait_if(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            assert self.go_on.wait(PATIENCE)

    def claim(self, pk: Any, fence: int | None = None) -> bool:
        self.wait_if("before claim")
        claimed = super().claim(pk, fence)
        self.wait_if("after claim")
        return claimed

    def finish(self, pk: Any, fence: int | None = None) -> None:
        self.wait_if("before finish")
        super().finish(pk, fence)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", ["before claim", "after claim", "in the body", "before finish"])
@pytest.mark.parametrize("ends", ["cancelled", "cancelled again", "closed"])
def test_coroutine_that_does_not_come_to_its_end_leaves_its_row_to_the_next_run(
    place: str, ends: str
) -> None:
    job, slow, in_body = Job.objects.create(), Slow(place), threading.Event()
    name, reached = f"job:{job.pk}", in_body if place == "in the body" else slow.reached

    @locked("job:{job_id}", guard=slow)
    async def work(job_id: int) -> str:
        if place == "in the body" and not in_body.is_set():
            in_body.set()
            await asyncio.get_running_loop().create_future()
        return "worked"

    async def end() -> None:
        run: Any = work(job.pk)
        if ends == "closed":
            awaited = run.send(None)
            while not reached.is_set():
                if (await asyncio.wait({awaited}, timeout=0.01))[0]:
                    awaited = run.send(None)
            run.close()
            slow.go_on.set()
            return
        task = asyncio.create_task(run)
        await asyncio.to_thread(until, reached.is_set)
        for turn in range(20):
            if turn == 0 or ends == "cancelled again":
                task.cancel()
            await asyncio.sleep(0)
        if ends == "cancelled" and place != "in the body":
            assert await locks.ais_locked(name)  # The UPDATE is under way.
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(end)()
    until(lambda: not locks.is_locked(name))
    if ends == "cancelled":
        assert status(job) == ("done" if place == "before finish" else "queued")
    if place != "before finish":
        assert async_to_sync(work)(job.pk) == "worked"
    assert status(job) == "done"


def test_outage_before_the_run_and_after_it(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)
    job = Job.objects.create()

    @locked("job:{job_id}", guard=guard())
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
    def work(job_id: int) -> None:
        pass

    def generate(job_id: int) -> Any:
        yield job_id

    anything: Any = object()
    with pytest.raises(ValueError, match="no such parameter"):
        locked("job:{job}")(work)
    with pytest.raises(InvalidLockConfig, match="'pk'"):
        locked("job:{job_id}", guard=guard(pk="pk"))(work)
    with pytest.raises(InvalidLockConfig, match="StatusGuard"):
        locked("job:{job_id}", guard=anything)(work)
    with pytest.raises(TypeError, match="@task"):
        locked("job")(anything)
    with pytest.raises(TypeError, match="generator"):
        locked("job:{job_id}")(generate)
    for wrong in ({"on_conflict": "retry"}, {"ttl": 0}):
        with pytest.raises(ValueError):
            locked("job", **wrong)
