"""``@locked`` on plain functions, as every Django can call them, and under ``@task()``.

`test_enqueue_once` has its part in what waits.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.test import override_settings

from django_tasklock import InvalidLockConfig, Lease, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.guards import StatusGuard
from django_tasklock.tasks import locked
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.pages import is_documented
from tests.projects import Project
from tests.servers import RedisServer
from tests.steps import LONG, holder, orphan, waiting
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_redis")]

OPTIONS: dict[str, Any] = {
    "pk": "job_id", "source": "queued", "to": "running", "done": "done", "failed": "failed",
}  # fmt: skip
guard = StatusGuard("app.Job", **OPTIONS, fence_field="lock_fence")


def status(job: Job) -> str:
    job.refresh_from_db()
    return job.status


def test_a_function_runs_under_the_lock_and_gets_the_lease_if_it_has_a_parameter_for_it() -> None:
    # Given a function whose argument names the lock, with a parameter for the lease
    @locked("video:{video_id}", ttl=LONG)
    def encode(video_id: int, *, quality: str = "high", lease: Lease | None = None) -> Any:
        """Encode."""
        assert lease
        return holder(lease.name).owner.task, lease.name, quality

    # I expect a call without that to hold the lock, which names the function
    task = f"{__name__}.{encode.__qualname__}"
    assert encode(7, quality="low") == (task, "video:7", "low")
    assert not locks.is_locked("video:7")

    # And the function to look as before, but for the lease
    assert (encode.__name__, encode.__doc__) == ("encode", "Encode.")
    assert list(inspect.signature(encode).parameters) == ["video_id", "quality"]


def test_a_run_that_finds_the_lock_taken_is_skipped_and_says_why_or_raises() -> None:
    @locked("video:{video_id}")
    def encode(video_id: int, context: Any = None) -> Any:
        return encode(video_id) if context else "encoded"

    skipped = {
        "status": "skipped", "reason": "already_processing", "lock": "video:7", "holder": None,
    }  # fmt: skip
    with lock("video:7", cooldown=LONG):
        assert encode(7) == skipped
        with pytest.raises(LockNotAcquired):
            locked(lambda video_id: f"video:{video_id}", on_conflict="raise")(repr)(7)
        assert encode(8) == "encoded"
    assert encode(7) == skipped | {"reason": "cooling_down"}
    # By a task with an id, and by an operator
    own = type("Context", (), {"task_result": type("Result", (), {"id": "the first"})})
    assert encode(9, own) == skipped | {"lock": "video:9", "holder": "the first"}
    assert locks.hold("video:8", LONG, "alice", "a migration") is not None
    assert encode(8).items() > {"reason": "held_by_operator", "held_by": "alice"}.items()


def test_runs_on_one_event_loop_take_turns_and_one_that_is_cancelled_leaves_the_queue() -> None:
    steps: list[str] = []
    runs: list[asyncio.Task[None]] = []

    @locked("video:1", ttl=LONG, wait=LONG)
    async def work() -> None:
        steps.append("begin")
        if len(steps) == 1:
            await asyncio.to_thread(until, lambda: waiting("video:1") == 2)
            next(each for each in runs if each is not asyncio.current_task()).cancel()
            await asyncio.to_thread(until, lambda: waiting("video:1") == 1)
        steps.append("end")

    async def three() -> None:
        runs.extend(asyncio.create_task(work()) for _ in range(3))
        await asyncio.wait(runs)

    async_to_sync(three)()
    assert steps == ["begin", "end"] * 2
    assert sum(each.cancelled() for each in runs) == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_claims_its_row_and_leaves_it_as_it_ended(fails: bool, is_async: bool) -> None:
    """`test_guarded_row` has all other ends."""

    def work(job_id: int) -> float:
        assert status(job) == "running"
        return 1 / (not fails)

    async def work_async(job_id: int) -> float:
        return await sync_to_async(work)(job_id)

    job, take = Job.objects.create(), locked("job:{job_id}", guard=guard)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        async_to_sync(take(work_async))(job.pk) if is_async else take(work)(job.pk)
    assert status(job) == ("failed" if fails else "done")
    until(lambda: not locks.is_locked(f"job:{job.pk}"))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_row_that_is_not_there_or_not_committed_is_said(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def work_async(job_id: int) -> None: ...

    def work(job_id: int) -> None: ...

    take: Any = locked("job:{job_id}", guard=guard)
    run = async_to_sync(take(work_async)) if is_async else take(work)
    assert run(7)["reason"] == "invalid_state"
    with pytest.raises(RuntimeError, match="used inside atomic"), transaction.atomic():
        run(7)
    (said,) = caplog.messages
    assert f"{work.__name__}" in said
    assert ": there is no row app.Job 7, lock job:7. Was it sent before the commit? Use " in said


@pytest.mark.parametrize(("own", "ends"), [(None, "queued"), (guard, "done")])
def test_a_lease_that_was_handed_on_is_not_lost(own: StatusGuard | None, ends: str) -> None:
    @locked("job:{job_id}", guard=own)
    def work(job_id: int, *, lease: Lease) -> Lease | None:
        return locks.adopt(lease.detach())

    job = Job.objects.create()
    assert work(job.pk).release()  # type: ignore[call-arg, union-attr]
    assert status(job) == ends


@pytest.mark.parametrize("place", ["claim", "body", "finish"])
@pytest.mark.parametrize("times", [1, 20])
def test_a_coroutine_that_is_cancelled_leaves_its_row_to_the_next_run(
    place: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    own, job = StatusGuard("app.Job", **OPTIONS), Job.objects.create()

    def update(*args: Any) -> Any:
        # One that waits in one place until it may go on
        claimed = StatusGuard.claim(own, *args) if place == "claim" else None
        reached.set()
        assert go_on.wait(PATIENCE)
        return claimed if place == "claim" else StatusGuard.finish(own, *args)

    @locked("job:{job_id}", guard=own)
    async def work(job_id: int) -> str:
        if place == "body" and not reached.is_set():
            reached.set()
            await asyncio.get_running_loop().create_future()
        return "worked"

    async def cancel() -> None:
        task = asyncio.create_task(work(job.pk))
        await asyncio.to_thread(until, reached.is_set)
        assert await locks.ais_locked(f"job:{job.pk}")
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(own, place, update, raising=False)
    async_to_sync(cancel)()
    until(lambda: not locks.is_locked(f"job:{job.pk}"))
    if times == 1:
        assert status(job) == ("done" if place == "finish" else "queued")
    if place != "finish":
        assert async_to_sync(work)(job.pk) == "worked"
    assert status(job) == "done"


def test_an_outage_before_the_run_and_after_it(
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


def generate(number: int) -> Any:
    yield number


def take(job_id: int) -> None: ...


def test_a_mistake_names_the_task_and_says_what_to_do() -> None:
    anything: Any = object()
    of_guard = r"guard names the argument 'job_id', and .* \(there are: job\)"
    wrong: list[tuple[str, str, dict[str, Any], Any]] = [
        (r"'job:{number}' names .* \(there are: job\)", "job:{number}", {}, status),
        (of_guard, "job", {"guard": guard}, status),
        ("guard must be a StatusGuard or None", "job", {"guard": anything}, status),
        ("leave out slots", "job", {"guard": guard, "slots": 2}, take),
        ("cannot decorate the generator", "job:{number}", {}, generate),
        ('on_conflict must be "skip" or "raise"', "job", {"on_conflict": "retry"}, status),
        ("ttl must be a number of seconds from 0.001", "job", {"ttl": 0}, status),
        ("unique_for must be a number of seconds from 0.001", "job", {"unique_for": 0}, status),
        ("slots must be", "job", {"slots": 0}, status),
        ("cooldown must be", "job", {"cooldown": -1}, status),
        (r"locked\(\) has no option timeout: wait= is how long", "job", {"timeout": 3}, status),
        ("no option lock_ttl: it has ttl, .*cooldown_after_error", "job", {"lock_ttl": 3}, status),
        ("a lock's name must have", "", {}, status),
    ]
    for says, name, options, function in wrong:
        with pytest.raises(
            InvalidLockConfig, match=f"^task {__name__}.{function.__qualname__}: .*{says}"
        ):
            locked(name, **options)(function)
    others: list[Any] = [anything, staticmethod(status), classmethod(repr)]
    for each in others:
        with pytest.raises(TypeError, match=r"decorates a function, below @task\(\), not <"):
            locked("job")(each)


# ------------------------------------------------------------------------------ slots, cooling


def test_runs_hold_permits_and_the_next_one_is_skipped() -> None:
    @locked("export:{tenant}", slots=2)
    def export(tenant: int, depth: int, *, lease: Lease | None = None) -> Any:
        assert lease
        return export(tenant, depth - 1) if depth else lease.slot

    skipped = {"status": "skipped", "reason": "already_processing", "lock": "export:7"}
    assert export(7, 1) == 2
    assert export(7, 2).items() > skipped.items()
    with lock("export:7", slots=3):  # It shares the permits with all others.
        assert export(7, 0) == 2


def test_a_lock_cools_after_a_run_that_did_something() -> None:
    def work(job_id: int) -> float:
        return 1 / job_id

    for name, options, argument, cools in [
        ("hold", {"hold_at_least": LONG}, 1, True),
        ("after", {"cooldown": LONG}, 1, True),
        ("not after", {"cooldown_after_error": LONG}, 1, False),
        ("error", {"cooldown_after_error": LONG}, 0, True),
        ("no row", {"hold_at_least": LONG, "cooldown": LONG, "guard": guard}, -1, False),
    ]:
        task = locked(name.replace(" ", "-"), **options)(work)  # type: ignore[arg-type]
        with nullcontext() if argument else pytest.raises(ZeroDivisionError):
            task(argument)
        assert locks.is_locked(name.replace(" ", "-")) is cools, name


# ------------------------------------------------------------------------------ Django's backend

on_django_6 = pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks since 6.0")
IMMEDIATE = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}


@on_django_6
@override_settings(TASKS=IMMEDIATE)
@pytest.mark.parametrize("name", ["work", "work_in_async"])
def test_a_task_runs_under_its_lock_and_is_skipped_if_another_does(name: str) -> None:
    from tests import django_tasks

    task: Any = getattr(django_tasks, name)
    # Given a task that claims a row, and another process that holds its lock
    # I expect it to be skipped, and to say why
    job = Job.objects.create()
    with lock(f"job:{job.pk}"):
        assert task.enqueue(job.pk).return_value["reason"] == "already_processing"

    # Given a run whose worker was killed when it had claimed the row, and the task sent again
    # I expect the work to be done, once
    orphan(f"job:{job.pk}")
    Job.objects.update(status="running")
    result = task.enqueue(job_id=job.pk)
    assert (result.status.name, result.return_value) == ("SUCCESSFUL", "worked")
    job.refresh_from_db()
    assert (job.status, job.done_count) == ("done", 1)
    assert task.enqueue(job.pk).return_value["reason"] == "invalid_state"
    assert not locks.count()


@on_django_6
@override_settings(TASKS=IMMEDIATE)
def test_a_task_may_raise_and_its_id_is_the_owners() -> None:
    from tests import django_tasks

    in_async: Any = django_tasks.in_async
    with lock("async:7"):
        failed = in_async.enqueue(7)
    assert failed.errors[0].exception_class_path == "django_tasklock.exceptions.LockNotAcquired"
    assert in_async.enqueue(7).return_value is True
    with_context = django_tasks.with_context.enqueue(7)
    assert with_context.return_value == with_context.id


# ------------------------------------------------------------------------------ system checks

SETTINGS = """
INSTALLED_APPS += ["django_tasklock", "videos", "broken"]
MEMORY = "django_tasklock.stores.memory.MemoryStore"
TASKLOCK = {"default": {"BACKEND": MEMORY}, "forgetful": {"BACKEND": "videos.stores.Forgetful"}}
"""
STORES = """
from django_tasklock.stores.memory import MemoryStore

class Forgetful(MemoryStore):
    longest_ttl = 4
"""
TASKS = """
from django_tasklock.guards import StatusGuard
from django_tasklock.tasks import locked

def body(pk): ...

def task(name, field="username", fence=None, **options):
    guard = StatusGuard("auth.User", field=field, source="a", to="b", done="c", fence_field=fence)
    body.__qualname__ = name
    return locked("user:{pk}", guard=guard, **options)(body)

kept = [task("other_field", field="state"), task("small_fence", fence="last_login")]
kept += [task("no_store", store="nowhere"), task("cools", store="forgetful", cooldown=5)]
kept += [task("right", cooldown=5)]
"""


def test_the_checks_see_the_guard_and_the_store_of_each_task(tmp_path: Path) -> None:
    # Given a project with functions under locks, in modules that nothing imports
    project = Project(tmp_path)
    project.run("django-admin", "startproject", "mysite", ".")
    project.write("mysite/settings.py", SETTINGS, append=True)
    for app in ("videos", "broken"):
        project.write(f"{app}/__init__.py", "")
    project.write("broken/tasks.py", "import no_such_library\n")
    project.write("videos/tasks.py", TASKS)
    project.write("videos/stores.py", STORES)
    assert "no issues" in project.run("python", "manage.py", "check")

    # I expect the checks to say what is wrong with each, once that setting is there
    project.write("mysite/settings.py", "TASKS = {}\n", append=True)
    said = project.run("python", "manage.py", "check", fails=True)
    found = re.findall(r"django_tasklock\.(\w+)\) (task videos\.tasks\.(\w+): .*)", said)
    for identity, text, _ in found:
        assert is_documented(f"django_tasklock.{identity}", text), text
    wrong = {"E003": "other_field", "E004": "no_store", "E005": "small_fence", "E006": "cools"}
    assert {identity: name for identity, _, name in found} == wrong
    assert said.count("(django_tasklock.") == len(wrong)
    assert "Correct store, or add the store to TASKLOCK, which has 'default', 'forgetful'." in said

    # And that one of them cannot be made
    project.write("videos/tasks.py", 'locked("user:{id}")(body)\n', append=True)
    said = project.run("python", "manage.py", "check", fails=True)
    assert "E007) task videos.tasks.right: 'user:{id}' names the argument 'id'" in said
