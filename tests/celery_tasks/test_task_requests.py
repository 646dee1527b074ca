"""A worker's requests for a locked task: our class, combined with the project's, and what it ends.

With real workers: tests/hard_cases, cases 1, 6, 7, 8, 24, 37 and 38.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from celery.worker.state import revoked
from django.core.cache import cache
from django.db import DatabaseError
from kombu import Queue
from kombu.common import Broadcast

from django_tasklock import InvalidLockConfig, lock, locks
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, of_dead_child, status
from tests.inside import asked, follow_up, name_follow_up
from tests.mailroom import Mailroom, ends
from tests.steps import LONG, in_child


class OwnRequest(Request):
    """A project's own."""


@pytest.mark.parametrize("then", ["", "cools", "is handed on", "is adopted"])
def test_of_a_dead_child_only_the_lease_that_it_held_is_cleared(room: Mailroom, then: str) -> None:
    # Given a child that was killed while its run held the lock; or after the end of the run, when
    # the lock cools, or another has it by the same token
    request = room.received(message := room.message(lock_cooldown=LONG))

    def work() -> Any:
        if then == "cools":
            return os.getpid(), room.deliver(message)[0]
        lease: Any = asked("job:1", ttl=LONG, token=message.ours["token"])
        return os.getpid(), then and lease.detach()

    request.worker_pid, handle = in_child(work)
    lease = locks.adopt(handle) if then == "is adopted" else None

    # When the main process hears of it, I expect the lock to be free, unless it is not the child's
    ends(request, WorkerLostError())
    assert locks.is_locked("job:1") is bool(then)
    assert lease is None or lease.held


@pytest.mark.parametrize("own", [OwnRequest, f"{__name__}:OwnRequest"])
def test_the_projects_own_is_combined_with_ours(room: Mailroom, own: Any) -> None:
    _, *order = room.request_class(room.task(Request=own)).__mro__
    ours = [each for each in order if each.__module__.startswith("django_tasklock.")]
    assert order.index(ours[0]) < order.index(OwnRequest)


def test_a_process_that_only_sends_imports_nothing_of_the_worker(
    process_env: Callable[[], dict[str, str]],
) -> None:
    source = """
import sys, django; django.setup()
from celery import Celery
from django_tasklock.celery import LockedTask
@Celery("x", broker="memory://", fixups=[]).task(base=LockedTask)
def sent(): pass
sent.delay()
print([name for name in sys.modules if name.startswith(("celery.worker", "celery.concurrency"))])
"""
    assert subprocess.check_output([sys.executable, "-c", source], env=process_env()) == b"[]\n"


def test_a_row_has_failed_before_a_revoked_body_is_told_to_end(room: Mailroom, row: Job) -> None:
    """Told to, it ends as at a shutdown, and reopens its row."""
    Job.objects.update(status="working")
    message = room.message(job=row.pk, guard=job_guard(None))
    request = of_dead_child(room, message, f"job:{row.pk}")
    request.time_start = 1.0
    seen: list[str] = []
    request.terminate(Mock(terminate_job=lambda *_: seen.append(status(row))))
    assert (seen, locks.is_locked(f"job:{row.pk}")) == (["failed"], True)


def test_a_revoked_message_that_has_not_begun_leaves_the_row_to_who_works_on_it(
    room: Mailroom, row: Job
) -> None:
    # Given a row that other code works on, under a key of its own
    Job.objects.update(status="working")
    cache.add(f"lock:job:{row.pk}", "locked", LONG)

    # When a message for it is revoked before it has begun
    request = room.received(room.message(job=row.pk, guard=job_guard(None)))
    request.terminate(Mock())

    # I expect the row to be as it was
    assert status(row) == "working"


def test_the_lock_of_a_dead_child_is_cleared_though_its_row_cannot_be_failed(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard = job_guard(None)
    monkeypatch.setattr(guard, "fail", Mock(side_effect=DatabaseError))
    request = of_dead_child(room, room.message(guard=guard))
    request.on_timeout(soft=False, timeout=1)
    assert locks.is_locked("job:1")
    ends(request, WorkerLostError())
    assert not locks.is_locked("job:1")
    assert "could not be marked as failed" in caplog.text


def test_a_revoked_message_keeps_no_reservation_and_no_lease(room: Mailroom) -> None:
    task = room.task(unique_while="queued", on_conflict="coalesce")
    result = task.apply_async([1], lease=locks.acquire("job:1", ttl=LONG))
    message = room.take()
    name_follow_up(task, message)
    request = room.received(message)
    assert not request.revoked()
    revoked.add(result.id)
    assert request.revoked()
    assert not locks.is_locked("job:1")
    assert follow_up(task) is None
    assert task.delay(1).id != result.id


@pytest.mark.parametrize("options", [{}, {"on_conflict": "retry"}, {"autoretry_for": (Exception,)}])
def test_a_message_that_all_workers_got_is_refused_by_each(
    room: Mailroom, options: dict[str, Any]
) -> None:
    """With the mend. None is sent on: all workers would get that, too."""
    room.app.conf.task_queues = (Broadcast("everyone"), Queue(room.queue))
    task = room.task(unique_while="queued", acks_late=True, **options)
    task.delay(1)
    message = room.take()
    with lock("job:1", ttl=LONG):
        for _ in range(2):
            error = room.fails(message, InvalidLockConfig, exchange="everyone")
            assert f"task {task.name}: its message came by a broadcast (fanout) queue" in str(error)
            assert "Make it a plain task, and use lock(...) in its body" in str(error)
    assert room.ids() == []
    task.delay(1)  # It has left no reservation.
    assert room.work_off() == [("SUCCESS", "done:1")]
