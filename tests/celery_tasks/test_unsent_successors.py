"""The broker does not take the message that would go on with a run's work: a retry, or the
replacement. The job is not lost, and it is not done twice if the broker has the message after all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError

from django_tasklock import locks
from django_tasklock.celery import requeue
from django_tasklock.celery.earlier_retry import EarlierRetry
from django_tasklock.guards import StatusGuard
from django_tasklock.stores import stores
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.mailroom import Mailroom, killed_before_release
from tests.proxy import CutProxy
from tests.steps import killed_in_child
from tests.waiting import until

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


def pauses(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], None]) -> None:
    """What happens in the pause before a message is rejected, and nowhere else."""
    monkeypatch.setattr(requeue, "time", SimpleNamespace(sleep=pause, time=time.time))


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
    assert (state, isinstance(error, Reject), error.requeue) == ("REJECTED", True, True)
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


def test_what_the_body_raised_after_its_last_retry_is_its_failure(room: Mailroom) -> None:
    """Though it is the error of a broker."""

    def work(self: Any, job: int) -> None:
        raise OperationalError("of another broker, which the body has asked")

    options = {"autoretry_for": (OperationalError,), "max_retries": 0}
    room.task(work, acks_late=True, **options).delay(1)
    state, error = room.deliver(room.take())
    assert (state, type(error)) == ("FAILURE", OperationalError)


def test_a_time_limit_that_comes_meanwhile_changes_nothing(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(_seconds: float) -> None:
        raise SoftTimeLimitExceeded

    def work(self: Any, job: int) -> None:
        away(broker)
        pauses(monkeypatch, limit)
        raise self.retry(countdown=0)

    room.task(work, acks_late=True).delay(1)
    state, error = room.deliver(room.take())
    assert (state, isinstance(error, Reject), error.requeue) == ("REJECTED", True, True)


@pytest.mark.django_db(transaction=True)
def test_a_replacement_that_was_sent_all_the_same_keeps_the_row(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a fence its claim looks as that of the run that sent it."""
    row, seen = Job.objects.create(), []
    guard = StatusGuard(
        "app.Job", pk="job", source="queued", to="working", done="done", failed="failed"
    )
    other = room.task(acks_late=True, lock_name="other:{job}")

    def work(self: Any, job: int) -> None:
        broker.drop_reply(b"LPUSH")
        raise self.replace(other.s(job))

    def claimed(_seconds: float) -> None:
        assert guard.claim(row.pk)

    room.task(work, acks_late=True, guard=guard).delay(row.pk)
    message = room.take()
    pauses(monkeypatch, claimed)
    seen.append(room.deliver(message)[0])
    row.refresh_from_db()
    assert [*seen, row.status] == ["REJECTED", "working"]


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
def test_a_retry_whose_sender_was_killed_is_no_second_run(room: Mailroom, first: str) -> None:
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

    killed_before_release(room, message)
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


def send_next_and_go_on(task: Any, job: int, how: str) -> None:
    """Both are asked for: the next try, and the rest of this one."""
    if how == "by retry":
        task.retry(countdown=0, throw=False)
    elif how == "by its signature":
        task.signature_from_request(task.request, retries=1, countdown=0).apply_async()
    else:
        task.apply_async((job,), task_id=task.request.id, retries=1)


HOWS = ["by retry", "by its signature", "by a call"]


@pytest.mark.parametrize("how", HOWS)
def test_a_redelivery_that_goes_on_after_its_retry_leaves_it(room: Mailroom, how: str) -> None:
    starts: list[int] = []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if not self.request.retries:
            send_next_and_go_on(self, job, how)

    room.task(work, acks_late=True, ignore_result=True).delay(1)
    room.deliver(room.take(), redelivered=True)
    room.work_off()
    assert starts == [0, 1]


def test_a_retry_in_an_outage_is_sent_where_the_guard_alone_may_run(room: Mailroom) -> None:
    """``on_outage="run"``: what an earlier run has noted of it is removed later."""
    starts: list[int] = []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if not self.request.retries:
            raise self.retry(countdown=0)

    room.task(work, acks_late=True, on_outage="run", ignore_result=True).delay(1)
    with outage():
        assert room.deliver(room.take(), redelivered=True)[0] == "RETRY"
    room.work_off()
    assert starts == [0, 1]


@pytest.mark.parametrize("how", HOWS)
def test_a_run_that_goes_on_after_its_retry_comes_back_if_it_is_killed(
    room: Mailroom, how: str
) -> None:
    """The retry, which has run, has not done the rest of its work."""
    log: list[str] = []

    def work(self: Any, job: int) -> None:
        if self.request.retries:
            log.append("retry")
        elif os.getpid() == here:
            log.append("rest")
        else:
            send_next_and_go_on(self, job, how)
            os.kill(os.getpid(), signal.SIGKILL)

    here = os.getpid()
    room.task(work, acks_late=True, ignore_result=True).delay(1)
    message = room.take()
    killed_in_child(lambda: room.deliver(message))
    locks.clear("job:1")
    room.deliver(room.take())
    room.deliver(message, redelivered=True)
    assert log == ["retry", "rest"]


@pytest.mark.parametrize("silent", [False, True], ids=["", "while the store is silent"])
def test_a_redelivery_that_was_killed_after_its_work_may_retry(
    room: Mailroom, silent: bool
) -> None:
    """It had the retry dropped that an earlier run may have sent; this one sends another."""
    room.app.conf.task_ignore_result = True
    here = os.getpid()
    ends: list[str] = []

    def work(self: Any, job: int) -> None:
        if os.getpid() != here:
            return
        if not self.request.retries:
            with outage() if silent and not ends else nullcontext():
                ends.append("first")
                raise self.retry(countdown=0)
        ends.append("retry")

    room.task(work, acks_late=True).delay(1)
    message = room.take()

    killed_before_release(room, message, redelivered=True)
    if silent:
        assert room.deliver(message, redelivered=True)[0] == "REJECTED"
        assert room.waiting() == []
    assert room.deliver(message, redelivered=True)[0] == "RETRY"
    room.work_off()
    assert ends[-1] == "retry"


def test_a_redelivery_that_loses_its_lease_at_the_end_leaves_the_retry(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result does not count."""
    starts: list[int] = []

    def work(self: Any, job: int) -> None:
        starts.append(self.request.retries)
        if len(starts) == 1:
            broker.drop_reply(b"LPUSH")
            raise self.retry(countdown=0)

    drop = EarlierRetry.drop

    def lost(retry: EarlierRetry, write: Any) -> None:
        drop(retry, write)
        locks.clear("job:1")

    room.task(work, acks_late=True, ignore_result=True).delay(1)
    message = room.take()
    room.deliver(message)
    with monkeypatch.context() as patched:
        patched.setattr(EarlierRetry, "drop", lost)
        assert room.deliver(message, redelivered=True)[0] == "FAILURE"
    key = f"run {message.id}:1.0:{message.ours['sent']}"
    until(lambda: stores["default"].get_note(key) is None, "the end of the note")
    room.work_off()
    assert starts == [0, 0, 1]


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
