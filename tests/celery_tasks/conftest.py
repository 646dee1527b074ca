"""Fixtures and steps for tests of tasks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.utils.time import maybe_iso8601

from django_tasklock import Lease, locks
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.inside import asked, clock, follow_up, in_pauses, recall_after
from tests.mailroom import Mailroom, Message, Runs, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, in_child, taken
from tests.waiting import until

MakeTask = Callable[..., Any]
FENCES = pytest.mark.parametrize("fence", ["lock_fence", None], ids=["fence", "no-fence"])


HOW = pytest.mark.parametrize("how", ["directly", "eagerly"])


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    """A worker without a process, on Redis: it takes messages when a test says so."""
    use_redis()
    taken("in:use").release()  # The store of a site has granted locks.
    with mailroom(redis_server.url) as room:
        yield room


@pytest.fixture
def broker(room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
    """What is between the tasks and their broker; the worker has a way of its own."""
    room.app.conf.update(broker_write_url=cut_proxy.url, task_publish_retry=False)
    return cut_proxy


@pytest.fixture
def row(transactional_db: None) -> Job:
    row: Job = Job.objects.create()
    return row


@pytest.fixture
def app() -> Any:
    """An app without a queue: what is sent runs at once."""
    app = Celery("locked", broker="memory://", set_as_current=False, fixups=[])
    app.conf.update(task_always_eager=True, result_backend="cache+memory://")
    return app


@pytest.fixture
def task(app: Any) -> MakeTask:
    """``task(body, **options)``: a bound, locked task of that app."""

    def make(body: Callable[..., Any], **options: Any) -> Any:
        usual = {"base": LockedTask, "bind": True, "lazy": False, "lock_name": "video:{video}"}
        # Not shared: every app of this process would have it too.
        return app.task(
            body, **{"name": f"videos.{body.__name__}", "shared": False, **usual, **options}
        )

    return make


def call(task: Any, how: str, *args: Any) -> Any:
    return task(*args) if how == "directly" else task.apply(args).get(disable_sync_subtasks=False)


def job_guard(fence: str | None = "lock_fence", **options: Any) -> Any:
    """The guard of such a row, which the argument ``job`` names."""
    named = {"pk": "job", "source": "queued", "to": "working", "done": "done", "failed": "failed"}
    return StatusGuard("app.Job", fence_field=fence, **named | options)


def status(row: Job) -> str:
    """What the database says of the row now."""
    row.refresh_from_db()
    return row.status


def lose(lease: Any, *, clear: bool = True) -> None:
    """End a lease, as if its process had stood still for longer than it lasts."""
    lease._own.until = clock.now() - 1
    if clear:
        locks.clear(lease.name)


def held_elsewhere(name: str = "job:1", **options: Any) -> Lease:
    """A lease that another thread has taken."""
    return Meanwhile(lambda: taken(name, **options)).result()


def of_dead_child(room: Mailroom, message: Message, name: str = "job:1") -> Any:
    """The request of a message whose pool child has died while it held the lock."""

    def work() -> int:
        asked(name, ttl=LONG, token=message.ours["token"])
        return os.getpid()

    request = room.received(message)
    request.worker_pid = in_child(work)
    return request


def loses_its_lease(self: Any, job: Any) -> None:
    """The body of a run that finds out that its lease is lost."""
    lose(self.lease)
    self.lease.assert_held()


def retries_once(self: Any, job: Any) -> Any:
    """The body of a run that returns in its first retry."""
    return self.request.retries or self.retry(countdown=0)


def retries(self: Any, job: Any) -> Any:
    """The body of a run that retries, or a step of one."""
    raise self.retry(countdown=0)


def raising(error: BaseException) -> Any:
    """A body that raises this error, or a step of one."""

    def work(self: Any, job: Any) -> Any:
        raise error

    return work


def due_in(message: Message) -> float:
    """Seconds until a worker may start the message."""
    eta: Any = maybe_iso8601(message.headers["eta"])
    return float((eta - datetime.now(timezone.utc)).total_seconds())


def recording(room: Mailroom, **options: Any) -> tuple[Any, list[Any]]:
    """A task, and what its runs were called with."""
    runs: list[Any] = []

    def body(self: Any, job: Any, other: Any = None) -> str:
        runs.append(other)
        return f"done:{other}"

    usual = {"name": f"task-{random.randrange(10**9)}", "lock_name": "job:{job}"}
    return room.register(body, bind=True, **{**usual, **options}), runs


def replacing(room: Mailroom, *bodies: Any, **options: Any) -> tuple[Any, Runs]:
    """A task whose calls replace each other (``on_conflict="replace"``), and its runs."""
    runs = Runs(*bodies)
    return room.task(runs, on_conflict="replace", **options), runs


@pytest.fixture
def recalls_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is replaced learns of it at once."""
    recall_after(monkeypatch, 0.02)


def recalled(task: Any, job: Any) -> None:
    """The body of a run that is replaced by a later call; and that goes on."""
    task.delay(job)
    until(lambda: not task.lease.held, "the recall")


def replaced_by(outcome: tuple[str, Any], newest: str) -> None:
    """What became of a message is the marker, which names the newest call."""
    state, marker = outcome
    assert (state, marker["reason"], marker["holder"]) == ("SUCCESS", "replaced", newest)


def has_reserved_nothing(task: Any, name: str) -> bool:
    """Whether no message waits for this lock, and no follow-up, as far as the store knows."""
    return not list(task.locks.store.reservations()) and follow_up(task, name) is None


def reserved_for(room: Mailroom, task: Any) -> float:
    """Seconds that the reservation of the task's only job lasts from now on."""
    (key,) = room.redis.keys(f"*queued {task.name} *")
    return float(room.redis.pttl(key)) / 1000


def away(broker: CutProxy) -> None:
    """From now on the broker does not answer."""
    broker.refuse()
    broker.cut()


pauses = in_pauses
