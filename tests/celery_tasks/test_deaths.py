"""The worker's main process decides that a run has died, and whether its message comes again.

With real workers: tests/hard_cases, cases 44 to 46.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded, WorkerLostError
from celery.signals import worker_shutting_down
from celery.worker import state

from django_tasklock import locks
from django_tasklock.celery import stopping
from django_tasklock.celery.note import CameBack, RunNote
from django_tasklock.celery.options import follow_up_key
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.mailroom import Mailroom, Message
from tests.steps import LONG, killed_in_child
from tests.waiting import until


def ends(request: Any, error: BaseException) -> None:
    """Tell the request, as the pool does, that its run ended with this error."""
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo())


def note_of(request: Any) -> RunNote:
    return RunNote.read(request.attempts._locks.store.get_note(request.attempts.key))


@pytest.fixture
def verdicts(room: Mailroom) -> Callable[[Any], list[str]]:
    """Have a request note what becomes of its message."""

    def watch(request: Any) -> list[str]:
        said: list[str] = []
        request._on_ack = lambda *_: said.append("acknowledged")
        request._on_reject = lambda *args: said.append("again" if args[-1] else "rejected")
        return said

    return watch


@pytest.fixture
def message(room: Mailroom) -> Message:
    """One that kills its child in its body, and may do so three times."""
    here = os.getpid()

    def work(self: Any, job: Any) -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)

    room.task(work, acks_late=True, lock_max_attempts=3).delay(1)
    return room.take()


@pytest.fixture
def shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", 0)


def test_deaths_before_the_body_count(room: Mailroom, message: Message, verdicts: Any) -> None:
    for number in range(3):
        request = room.received(message)
        said = verdicts(request)
        ends(request, WorkerLostError())
        assert said == (["again"] if number < 2 else ["acknowledged"])
    assert room.app.AsyncResult(message.id).result.args[-1] == 3


def test_a_death_that_the_run_has_counted_counts_once(
    room: Mailroom, message: Message, verdicts: Any
) -> None:
    for number in range(3):
        request = room.received(message)
        said = verdicts(request)
        killed_in_child(partial(room.deliver, message, redelivered=number > 0))
        ends(request, WorkerLostError())
        assert note_of(request).starts == number + 1
    assert said == ["acknowledged"]
    assert room.app.AsyncResult(message.id).state == "FAILURE"


def test_a_run_that_ends_with_its_worker_does_not_count(
    room: Mailroom, message: Message, shutdown: None
) -> None:
    for number in range(4):
        request = room.received(message)
        killed_in_child(partial(room.deliver, message, redelivered=number > 0))
        ends(request, WorkerLostError())
        assert note_of(request).starts == 0
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"


@pytest.mark.parametrize("how", ["told to end", "cancelled"])
def test_a_start_is_taken_back_when_its_worker_is_told_to_end(
    room: Mailroom, message: Message, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: Any = room.received(message)
    killed_in_child(lambda: room.deliver(message))
    assert note_of(request).starts == 1
    if how == "cancelled":
        request.cancel(Mock())
    else:
        state.active_requests.add(request)
        # Where later tests of this process, and their children, would find it.
        monkeypatch.setattr(stopping, "_shared", bytearray(8))
        worker_shutting_down.send(None)
    until(lambda: note_of(request).starts == 0, "its start is taken back")


def test_another_deliverys_start_is_not_taken_back(room: Mailroom, message: Message) -> None:
    first = room.received(message)
    killed_in_child(lambda: room.deliver(message))
    room.received(message)
    killed_in_child(lambda: room.deliver(message, redelivered=True))
    first.attempts.take_back()
    assert note_of(first).starts == 2


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (ValueError(), True), (Ignore(), True), (Reject("no"), True),
        (Reject("again", requeue=True), False), (CameBack(), False), (Retry(), False),
        (WorkerLostError(), False), (SystemExit(), False), (TimeLimitExceeded(1), True),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("late", [True, False])
def test_when_a_message_is_over_what_it_reserved_ends(
    room: Mailroom, error: BaseException, gone: bool, late: bool
) -> None:
    task = room.task(unique_while="queued", on_conflict="coalesce", acks_late=late)
    result = task.delay(1)
    store, follow_up = task.locks.store, follow_up_key(task, "job:1")
    store.reserve(follow_up, result.id, LONG)
    ends(room.received(room.take()), error)
    over = gone or (not late and isinstance(error, WorkerLostError | SystemExit))
    assert (store.get_note(follow_up) is None) is over
    assert (task.delay(1).id != result.id) is over


def test_a_redelivery_of_a_run_that_went_on_leaves_the_retry_what_it_reserved(
    room: Mailroom,
) -> None:
    def work(self: Any, job: Any) -> Any:
        return self.request.retries or self.retry(countdown=0)

    task = room.task(work, unique_while="queued", acks_late=True)
    task.delay(1)
    first = room.take()
    assert room.deliver(first)[0] == "RETRY"
    request = room.received(first)
    state, error = room.deliver(first, redelivered=True)
    assert state == "IGNORED"
    ends(request, error)
    assert task.delay(1).id == first.id


def test_the_row_of_a_message_that_is_given_up_has_failed(
    room: Mailroom, transactional_db: None
) -> None:
    row = Job.objects.create(status="queued")
    guard = StatusGuard("app.Job", pk="job", source="queued", to="at work", done="done", failed="x")
    room.task(guard=guard, acks_late=True, lock_max_attempts=1).delay(row.pk)
    ends(room.received(room.take()), SystemExit())
    row.refresh_from_db()
    assert (row.status, locks.is_locked(f"job:{row.pk}")) == ("x", False)


def test_a_message_whose_lock_was_named_by_its_row_keeps_the_name(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    named, ran = ["ann"], []
    task = room.task(
        lambda self, job: ran.append(self.lease.name), lock_name=lambda job, other=None: named[0],
        unique_while="unfinished", acks_late=True,
    )  # fmt: skip
    first = task.delay(1)
    named[0] = "bob"
    request: Any = room.received(message := room.take())
    assert request._named() == ("ann", 1)
    assert room.deliver(message)[0] == "SUCCESS"
    assert ran == ["ann"]
    assert "runs under the lock ann" in caplog.text
    named[0] = "ann"
    assert task.delay(1).id != first.id
