"""The broker does not take the message that would go on with a run's work: a retry, or the
replacement. The job is not lost, and it is not done twice if the broker has the message after all.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from celery.exceptions import Reject
from kombu.exceptions import EncodeError

from django_tasklock import locks
from django_tasklock.celery.locked_run import LockedRun
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.mailroom import Mailroom
from tests.proxy import CutProxy
from tests.steps import killed_in_child

GUARD = StatusGuard(
    "app.Job", pk="job", source="queued", to="working", done="done", failed="failed",
    fence_field="lock_fence",
)  # fmt: skip


@pytest.fixture
def broker(room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
    """What is between the tasks and their broker."""
    room.app.conf.update(broker_write_url=cut_proxy.url, task_publish_retry=False)
    return cut_proxy


def away(broker: CutProxy) -> None:
    broker.refuse()
    broker.cut()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["retries", "is retried", "is replaced"])
def test_the_broker_delivers_the_message_again(room: Mailroom, broker: CutProxy, how: str) -> None:
    row, starts = Job.objects.create(), []
    other = room.task(acks_late=True, lock_name="other:{job}")

    def work(self: Any, job: int) -> str:
        starts.append(self.request.retries)
        if len(starts) > 1:
            return "done"
        away(broker)
        if how == "is retried":
            raise LookupError
        raise self.retry(countdown=0) if how == "retries" else self.replace(other.s(job))

    options = {"autoretry_for": (LookupError,), "default_retry_delay": 0}
    task = room.task(work, acks_late=True, guard=GUARD, lock_max_attempts=1, **options)
    task.delay(row.pk)
    message = room.take()
    state, error = room.deliver(message)
    assert (state, type(error), error.requeue) == ("REJECTED", Reject, True)
    row.refresh_from_db()
    assert row.status == "queued"
    assert not locks.is_locked(f"job:{row.pk}")
    broker.accept()
    # Its start does not count as a death.
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done")
    row.refresh_from_db()
    assert row.status == "done"
    assert starts == [0, 0]


def test_a_reservation_stays_with_the_message(room: Mailroom, broker: CutProxy) -> None:
    def work(self: Any, job: int) -> None:
        away(broker)
        raise self.retry(countdown=0)

    task = room.task(work, acks_late=True, unique_while="queued")
    first = task.delay(1)
    assert room.deliver(room.take())[0] == "REJECTED"
    broker.accept()
    assert task.delay(1).id == first.id
    assert room.waiting() == []


def test_what_no_message_can_carry_is_given_up(room: Mailroom) -> None:
    """As with any task: it cannot be sent at the next try either."""

    def work(self: Any, job: int) -> None:
        raise self.retry(args=[object()], countdown=0)

    room.task(work, acks_late=True).delay(1)
    state, error = room.deliver(room.take())
    assert (state, error.requeue, type(error.reason)) == ("REJECTED", False, EncodeError)


def test_without_acks_late_it_is_given_up(room: Mailroom, broker: CutProxy) -> None:
    """The broker does not have the message any more."""

    def work(self: Any, job: int) -> None:
        away(broker)
        raise self.retry(countdown=0)

    room.task(work).delay(1)
    state, error = room.deliver(room.take())
    assert (state, error.requeue) == ("REJECTED", False)


@pytest.mark.parametrize("results", [True, False], ids=["results", "no-results"])
@pytest.mark.parametrize("first", ["message", "retry"])
def test_a_retry_that_was_sent_all_the_same_is_no_second_run(
    room: Mailroom, broker: CutProxy, first: str, results: bool
) -> None:
    """Its sender was not told."""
    starts, ends = [], []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if len(starts) == 1:
            broker.drop_reply(b"LPUSH")
            raise self.retry(countdown=0)
        ends.append(job)

    room.task(work, acks_late=True, ignore_result=not results).delay(1)
    message = room.take()
    assert room.deliver(message)[0] == "REJECTED"
    retry = room.take()
    if first == "message":
        assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
        assert room.deliver(retry)[0] == "IGNORED"
    else:
        assert room.deliver(retry)[0] == "SUCCESS"
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert ends == [1]
    assert room.waiting() == []


@pytest.mark.parametrize("first", ["message", "retry"])
def test_a_retry_whose_sender_was_killed_is_no_second_run(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Before it could release its lock."""
    room.app.conf.task_ignore_result = True
    ends: list[int] = []

    def work(self: Any, job: int) -> None:
        if os.getpid() != here:
            raise self.retry(countdown=0)
        ends.append(job)

    here = os.getpid()
    room.task(work, acks_late=True).delay(1)
    message = room.take()

    def killed() -> None:
        monkeypatch.setattr(LockedRun, "release", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        room.deliver(message)

    killed_in_child(killed)
    locks.clear("job:1")
    retry = room.take()
    in_order = [(message, True), (retry, False)]
    for each, redelivered in in_order if first == "message" else reversed(in_order):
        room.deliver(each, redelivered=redelivered)
    assert ends == [1]


def test_a_redelivery_that_fails_leaves_the_retry(room: Mailroom, broker: CutProxy) -> None:
    """It has not done the work."""
    starts, ends = [], []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if len(starts) == 1:
            broker.drop_reply(b"LPUSH")
            raise self.retry(countdown=0)
        if len(starts) == 2:
            raise LookupError
        ends.append(job)

    room.task(work, acks_late=True, ignore_result=True).delay(1)
    message = room.take()
    room.deliver(message)
    assert room.deliver(message, redelivered=True)[0] == "FAILURE"
    assert room.deliver(room.take())[0] == "SUCCESS"
    assert starts == [0, 0, 1]


def test_a_redelivery_that_goes_on_after_its_retry_leaves_it(room: Mailroom) -> None:
    """``throw=False``: both were asked for."""
    starts: list[int] = []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=0, throw=False)

    room.task(work, acks_late=True, ignore_result=True).delay(1)
    room.deliver(room.take(), redelivered=True)
    room.work_off()
    assert starts == [0, 1]


def test_a_redelivery_that_retries_sends_one_that_runs(room: Mailroom, broker: CutProxy) -> None:
    """Of two messages of one try, one runs."""
    starts: list[int] = []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if len(starts) == 1:
            broker.drop_reply(b"LPUSH")
        if not self.request.retries:
            raise self.retry(countdown=0)

    room.task(work, acks_late=True, ignore_result=True).delay(1)
    message = room.take()
    room.deliver(message)
    assert room.deliver(message, redelivered=True)[0] == "RETRY"
    assert len(room.waiting()) == 2
    room.work_off()
    assert starts == [0, 0, 1]
