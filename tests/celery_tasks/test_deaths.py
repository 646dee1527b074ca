"""The worker's main process decides that a run has died, and whether its message comes again.

With real workers: tests/hard_cases, cases 44 to 46.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded, WorkerLostError
from celery.signals import worker_shutting_down
from celery.worker import state
from celery.worker.request import Request

from django_tasklock import locks
from django_tasklock.celery import stopping
from django_tasklock.celery.note import CameBack, RunNote
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.inside import asked, name_follow_up
from tests.mailroom import Mailroom, Message, ends
from tests.steps import LONG, in_child, killed_in_child
from tests.waiting import until

# Celery 5.7 and billiard 4.3 tell of an exit before the child is dead.
EXITS = [(SystemExit(), False)] if hasattr(Request, "_worker_lost_info") else []


@pytest.fixture(autouse=True)
def _waits_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need more than the second that a worker waits."""
    monkeypatch.setattr("django_tasklock.celery.request.CLEAR_WAIT_SECONDS", LONG)


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
        (WorkerLostError(), False), *EXITS, (TimeLimitExceeded(1), True),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("late", [True, False])
def test_when_a_message_is_over_what_it_reserved_ends(
    room: Mailroom, error: BaseException, gone: bool, late: bool
) -> None:
    task = room.task(unique_while="queued", on_conflict="coalesce", acks_late=late)
    result = task.delay(1)
    store, message = task.locks.store, room.take()
    follow_up = name_follow_up(task, message)
    ends(room.received(message), error)
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


def test_a_message_whose_lock_was_named_by_its_row_keeps_the_name(room: Mailroom) -> None:
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
    named[0] = "ann"
    assert task.delay(1).id != first.id


def test_a_function_names_the_lock_of_what_the_message_has(room: Mailroom) -> None:
    """A tuple is a list for the run, and for whoever sends the message by name."""
    task = room.task(lock_name=lambda job, other=None: f"job:{job}".replace(" ", ""))
    task.delay((1, 2))
    assert room.take().ours["name"] == "job:[1,2]"


def test_a_message_says_its_slots_only_if_they_depend_on_the_call(room: Mailroom) -> None:
    task = room.task(lock_slots=3)
    task.delay(1)
    message = room.take()
    type(task).lock_slots = 1  # In the next release.
    vars(task).pop("naming", None)
    request: Any = room.received(message)
    assert request._named() == ("job:1", 1)


@pytest.mark.parametrize(("most", "row_is"), [(1, "at work"), (0, "x")])
def test_a_message_that_celery_retries_for_its_dead_child_is_not_over(
    room: Mailroom, transactional_db: None, most: int, row_is: str
) -> None:
    """``retry_on_worker_lost``, which is new in Celery 5.7; with and without retries left."""
    row = Job.objects.create(status="at work")
    guard = StatusGuard("app.Job", pk="job", source="queued", to="at work", done="done", failed="x")
    task = room.task(guard=guard, acks_late=False, max_retries=most)
    task.retry_on_worker_lost = True
    task.delay(row.pk)
    request = room.received(message := room.take())

    def work() -> int:
        asked(f"job:{row.pk}", ttl=LONG, token=message.ours["token"])
        return os.getpid()

    request.worker_pid = in_child(work)
    ends(request, WorkerLostError())
    row.refresh_from_db()
    assert row.status == row_is


@pytest.mark.slow
def test_a_shutdown_of_a_gevent_worker_takes_all_starts_back(
    room: Mailroom, process_env: Callable[[], dict[str, str]]
) -> None:
    """Its signal handlers run in the hub, which must not wait for a thread to start."""
    pytest.importorskip("gevent")
    source = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, os, signal, django; django.setup()
from celery.signals import worker_shutting_down
from celery.worker import state
from django_tasklock.celery import request
taken = []
class Attempts:
    def take_back(self): gevent.sleep(0.01); taken.append(self)
class Request(request.LockedRequest):
    def __init__(self): self.attempts = Attempts()
running = [Request(), Request()]
state.active_requests.update(running)
signal.signal(signal.SIGALRM, lambda *_: worker_shutting_down.send(None))
signal.setitimer(signal.ITIMER_REAL, 0.2)
gevent.sleep(2)
print(len(taken))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], env=process_env(), capture_output=True, check=False
    )
    assert done.stdout == b"2\n", done.stderr.decode()
