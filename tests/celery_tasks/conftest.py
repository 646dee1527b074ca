"""Fixtures and steps for tests of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._values import clock
from django_tasklock.celery import requeue
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer

FENCES = pytest.mark.parametrize("fence", ["lock_fence", None], ids=["fence", "no-fence"])


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    """A worker without a process, on Redis: it takes messages when a test says so."""
    use_redis()
    with mailroom(redis_server.url) as room:
        yield room


@pytest.fixture
def broker(room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
    """What is between the tasks and their broker; the worker has a way of its own."""
    room.app.conf.update(broker_write_url=cut_proxy.url, task_publish_retry=False)
    return cut_proxy


@pytest.fixture
def row(transactional_db: None) -> Job:
    """A row that waits to be worked on."""
    row: Job = Job.objects.create()
    return row


def job_guard(
    fence: str | None = "lock_fence", kind: type[StatusGuard] = StatusGuard, **options: Any
) -> Any:
    """The guard of such a row, which the argument ``job`` names."""
    named = {"pk": "job", "source": "queued", "to": "working", "done": "done", "failed": "failed"}
    return kind("app.Job", fence_field=fence, **named | options)


def status(row: Job) -> str:
    """What the database says of the row now."""
    row.refresh_from_db()
    return row.status


def lose(lease: Any, *, clear: bool = True) -> None:
    """End a lease, as if its process had stood still for longer than it lasts."""
    lease._own.until = clock.now() - 1
    if clear:
        locks.clear(lease.name)


def away(broker: CutProxy) -> None:
    """From now on the broker does not answer."""
    broker.refuse()
    broker.cut()


def pauses(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]) -> None:
    """What happens in the pause before the next try, or before the message is rejected."""
    own = SimpleNamespace(sleep=lambda _seconds: pause(), time=time.time)
    monkeypatch.setattr(requeue, "time", own)
