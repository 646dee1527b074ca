"""A message that is delivered again: what it continues, and what it must not repeat."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_tasklock import lock, locks
from django_tasklock._values import clock
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.waiting import until


def test_a_redelivery_of_a_try_that_ended_in_a_retry_is_dropped(room: Mailroom) -> None:
    """The next try is in the queue already: a second one would run beside it."""
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            raise self.retry(countdown=0)

    room.task(work, acks_late=True).delay(1)
    first = room.take()
    assert room.deliver(first)[0] == "RETRY"
    assert room.deliver(first, redelivered=True)[0] == "IGNORED"
    assert len(room.waiting()) == 1
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == [0, 1]


def test_a_redelivery_of_a_task_that_was_replaced_is_dropped(room: Mailroom) -> None:
    runs: list[str] = []
    other = room.task(lambda self, job: runs.append("other"), lock_name="other:{job}")

    def work(self: Any, job: Any) -> Any:
        runs.append("task")
        return self.replace(other.s(job))

    task = room.task(work, acks_late=True)
    task.delay(1)
    first = room.take()
    assert room.deliver(first)[0] == "IGNORED"
    assert room.deliver(first, redelivered=True)[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == ["task", "other"]


def test_a_run_that_lost_its_lease_by_its_own_clock_alone_starts_over(room: Mailroom) -> None:
    """The store still has the lease: it extended the lease, but its reply was lost."""
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) == 1:
            self.lease._deadline = clock.now() - 1
            self.lease.assert_held()

    room.task(work, acks_late=True).delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert not locks.is_locked("job:1")
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == [1, 1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["a lock", "a direct call"])
def test_a_body_that_loses_another_lock_of_its_own_has_failed(room: Mailroom, how: str) -> None:
    """The lease of its own run is held, so there is no reason to start over."""
    guard = StatusGuard(
        "app.Job", pk="job", source="queued", to="working", done="done", failed="failed"
    )
    row = Job.objects.create()
    runs: list[str] = []

    def lose(self: Any, job: Any) -> None:
        self.lease._deadline = clock.now() - 1
        self.lease.assert_held()

    other = room.task(lose, lock_name="other:{job}")

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if how == "a direct call":
            other(job)
        with lock(f"other:{job}", ttl=60) as lease:
            locks.clear(lease.name)
            assert not lease.extend()
            lease.assert_held()

    room.task(work, acks_late=True, guard=guard).delay(row.pk)
    state, error = room.deliver(room.take())
    assert (state, error.name) == ("FAILURE", f"other:{row.pk}")
    assert room.waiting() == []
    row.refresh_from_db()
    assert (row.status, len(runs)) == ("failed", 1)
    assert not locks.is_locked(f"job:{row.pk}")


def test_a_message_is_kept_where_its_run_is_interrupted_while_redis_is_away(
    use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    """A redelivery that a cold shutdown interrupts is not acknowledged, and does not fail."""
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)

    def work(self: Any, job: Any) -> None:
        cut_proxy.refuse()
        cut_proxy.cut()
        raise SystemExit

    with mailroom(redis_server.url) as room:
        room.task(work, acks_late=True).delay(1)
        with pytest.raises(SystemExit):
            room.deliver(room.take(), redelivered=True)
        cut_proxy.accept()


def test_a_release_that_failed_is_tried_again(
    use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    """A short outage of Redis must not leave the lock taken for hours."""
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)

    def work(self: Any, job: Any) -> str:
        cut_proxy.refuse()
        cut_proxy.cut()
        return "done"

    with mailroom(redis_server.url) as room:
        room.task(work, lock_ttl=3600).delay(1)
        assert room.deliver(room.take()) == ("SUCCESS", "done")
        cut_proxy.accept()
        until(lambda: not locks.is_locked("job:1"), "the release")


@pytest.mark.django_db(transaction=True)
def test_a_guarded_run_whose_lease_ended_while_redis_was_away_starts_over(
    use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    """Without a fence it is not known which run has the row: the row is not changed."""
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)
    guard = StatusGuard("app.Job", pk="job", source="queued", to="working", done="done")
    row = Job.objects.create()
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) == 1:
            cut_proxy.refuse()
            cut_proxy.cut()
            self.lease._deadline = clock.now() - 1
            self.lease.assert_held()

    with mailroom(redis_server.url) as room:
        room.task(work, acks_late=True, guard=guard).delay(row.pk)
        assert room.deliver(room.take())[0] == "IGNORED"
        cut_proxy.accept()
        locks.clear(f"job:{row.pk}")
        assert room.work_off() == [("SUCCESS", None)]
    row.refresh_from_db()
    assert (row.status, runs) == ("done", [row.pk, row.pk])


def test_a_redelivery_whose_result_is_stored_is_dropped_after_the_note_of_its_run_has_ended(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note lasts for minutes, a result mostly for a day."""
    monkeypatch.setattr("django_tasklock.celery.received.END_NOTE_WITH_RESULT_SECONDS", 0.001)
    runs: list[Any] = []
    room.task(lambda self, job: runs.append(job), acks_late=True).delay(1)
    message = room.take()
    assert room.deliver(message) == ("SUCCESS", None)
    time.sleep(0.05)
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert runs == [1]
