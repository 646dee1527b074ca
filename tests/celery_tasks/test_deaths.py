"""The worker's main process learns that a child is dead, and decides whether its run has died, and
whether its message comes again.

With real workers: tests/hard_cases, cases 44 to 46.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery.concurrency.prefork import TaskPool
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded, WorkerLostError
from celery.signals import worker_shutting_down
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous import Hub

from django_tasklock import locks
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, of_dead_child, retries_once, status
from tests.inside import (
    came_back,
    children_of,
    deaths_of,
    follow_up,
    name_follow_up,
    patient_main_process,
    shut_down_alone,
)
from tests.mailroom import Mailroom, Message, ends, killed_in_body
from tests.waiting import PATIENCE, until

# Celery 5.7 and billiard 4.3 tell of an exit before the child is dead.
EXITS = [(SystemExit(), False)] if hasattr(Request, "_worker_lost_info") else []


@pytest.fixture(autouse=True)
def _waits_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_main_process(monkeypatch)


@pytest.fixture
def message(room: Mailroom) -> Message:
    """One whose child may die three times."""
    return room.message(acks_late=True, lock_max_attempts=3)


@pytest.mark.parametrize("where", ["before the body", "in the body"])
def test_a_message_whose_child_dies_each_time_is_given_up(
    room: Mailroom, message: Message, where: str
) -> None:
    for number in range(3):
        # Given a message whose child dies, perhaps after its run has counted its start
        request, said = room.received(message), list[str]()
        request._on_ack = lambda *_, said=said: said.append("acknowledged")
        request._on_reject = lambda *how, said=said: said.append("again" if how[-1] else "rejected")
        if where == "in the body":
            killed_in_body(room, message, redelivered=number > 0)
        ends(request, WorkerLostError())

        # I expect each death to count once, and the message to come again until the last
        assert deaths_of(request) == number + 1
        assert said == (["again"] if number < 2 else ["acknowledged"])

    # And its result to say how many there were
    result = room.app.AsyncResult(message.id)
    assert (result.state, result.result.args[-1]) == ("FAILURE", 3)


def test_a_run_that_ends_with_its_worker_does_not_count(
    room: Mailroom, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "should_stop", 0)
    for number in range(4):
        request = room.received(message)
        killed_in_body(room, message, redelivered=number > 0)
        ends(request, WorkerLostError())
        assert deaths_of(request) == 0
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"


@pytest.mark.parametrize("how", ["told to end", "cancelled"])
def test_a_start_is_taken_back_when_its_worker_is_told_to_end(
    room: Mailroom, message: Message, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = room.received(message)
    killed_in_body(room, message)
    assert deaths_of(request) == 1
    if how == "cancelled":
        request.cancel(Mock())
    else:
        state.active_requests.add(request)
        shut_down_alone(monkeypatch)
        worker_shutting_down.send(None)
    until(lambda: deaths_of(request) == 0, "its start is taken back")


def test_another_deliverys_start_is_not_taken_back(room: Mailroom, message: Message) -> None:
    first = room.received(message)
    killed_in_body(room, message)
    room.received(message)
    killed_in_body(room, message, redelivered=True)
    first.ours.attempts.take_back()
    assert deaths_of(first) == 2


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (ValueError(), True), (Ignore(), True), (Reject("no"), True),
        (Reject("again", requeue=True), False), (came_back(), False), (Retry(), False),
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
    message = room.take()
    name_follow_up(task, message)
    ends(room.received(message), error)
    over = gone or (not late and isinstance(error, WorkerLostError | SystemExit))
    assert (follow_up(task) is None) is over
    assert (task.delay(1).id != result.id) is over


def test_a_redelivery_of_a_run_that_went_on_leaves_the_retry_what_it_reserved(
    room: Mailroom,
) -> None:
    task = room.task(retries_once, unique_while="queued", acks_late=True)
    task.delay(1)
    first = room.take()
    assert room.deliver(first)[0] == "RETRY"
    request = room.received(first)
    state, error = room.deliver(first, redelivered=True)
    assert state == "IGNORED"
    ends(request, error)
    assert task.delay(1).id == first.id


# ------------------------------------------------------------------------------ children


Child = subprocess.Popen[bytes]


class Worker:
    """What its children are to a worker's main process: its pool and its event loop."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.pool = Mock(spec=TaskPool, _pool=Mock())
        self.deaths: list[str] = []
        self.children = children_of(self)

    def accepts(self, child: Child, message: str) -> None:
        self.children.accepted(child.pid, lambda: self.deaths.append(message))

    def is_told(self) -> Any:
        """Let the loop go on. Whether it has told of a death."""
        self.hub.run_once()
        return self.deaths


@pytest.fixture
def worker() -> Iterator[Worker]:
    with closing((worker := Worker()).hub):
        yield worker


@pytest.fixture
def child() -> Iterator[Child]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def end(child: Child) -> None:
    child.kill()
    child.wait(PATIENCE)


def pidfds() -> int:
    """How many this process has open."""
    files = Path("/proc/self/fd").iterdir()
    return sum("pidfd" in os.readlink(file) for file in files if file.is_symlink())


def test_of_a_child_that_dies_the_last_message_is_told_and_the_pool_looks_at_once(
    worker: Worker, child: Child
) -> None:
    before = pidfds()
    worker.accepts(child, "the first")
    worker.accepts(child, "the last")
    # A child that was forked since has the files of its parent open.
    if not (forked := os.fork()):
        signal.pause()
    try:
        end(child)
        assert until(worker.is_told) == ["the last"]
        assert worker.pool._pool.maintain_pool.call_count == 1
        assert pidfds() == before
        assert not worker.hub.poller.poll(0)
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_a_loop_that_was_reset_still_reports_a_death(worker: Worker, child: Child) -> None:
    """A worker that lost the broker has forgotten all the files of its loop, and begins it anew."""
    worker.accepts(child, "died")
    worker.hub.reset()
    assert not worker.hub.readers
    for _ in range(2):  # For each task.
        worker.children.use(worker)
    end(child)
    assert until(worker.is_told) == ["died"]


def test_without_a_loop_child_processes_or_pidfds_nothing_is_watched(
    worker: Worker, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    for consumer in (Mock(hub=None, pool=worker.pool), Mock(hub=worker.hub)):
        worker.children.use(consumer)
        worker.accepts(child, "died")
    worker.children.use(worker)
    end(child)
    worker.accepts(child, "after its death, which the pool knows")
    monkeypatch.delattr(os, "pidfd_open")
    worker.accepts(child, "on another system")
    assert not worker.hub.readers


# ------------------------------------------------------------------------------ names


def test_a_message_whose_lock_was_named_by_its_row_keeps_the_name(room: Mailroom) -> None:
    named, ran = ["ann"], []
    task = room.task(
        lambda self, job: ran.append(self.lease.name), lock_name=lambda job, other=None: named[0],
        unique_while="unfinished", acks_late=True,
    )  # fmt: skip
    first = task.delay(1)
    named[0] = "bob"
    message = room.take()
    ends(of_dead_child(room, message, "ann"), WorkerLostError())
    assert not locks.is_locked("ann")
    assert room.deliver(message)[0] == "SUCCESS"
    assert ran == ["ann"]
    named[0] = "ann"
    assert task.delay(1).id != first.id


def test_a_retry_with_other_arguments_names_its_lock(room: Mailroom) -> None:
    def other(self: Any, job: Any) -> None:
        raise self.retry(args=(2,), countdown=0)

    room.deliver(room.message(other))
    assert room.take().ours["name"] == "job:2"


def test_a_message_says_its_slots_only_if_they_depend_on_the_call(room: Mailroom) -> None:
    message = room.message(lock_slots=3)
    task: Any = room.app.tasks[message.task]
    type(task).lock_slots = 1  # In the next release.
    vars(task).pop("naming", None)
    ends(of_dead_child(room, message), WorkerLostError())
    assert not locks.is_locked("job:1")


# ------------------------------------------------------------------------------ rows


def test_the_row_of_a_message_that_is_given_up_has_failed(room: Mailroom, row: Job) -> None:
    message = room.message(job=row.pk, guard=job_guard(None), acks_late=True, lock_max_attempts=1)
    ends(room.received(message), SystemExit())
    assert (status(row), locks.is_locked(f"job:{row.pk}")) == ("failed", False)


@pytest.mark.parametrize(("most", "row_is"), [(1, "working"), (0, "failed")])
def test_a_message_that_celery_retries_for_its_dead_child_is_not_over(
    room: Mailroom, row: Job, most: int, row_is: str
) -> None:
    """``retry_on_worker_lost``, which is new in Celery 5.7; with and without retries left."""
    Job.objects.update(status="working")
    task = room.task(guard=job_guard(None), acks_late=False, max_retries=most)
    task.retry_on_worker_lost = True
    task.delay(row.pk)
    ends(of_dead_child(room, room.take(), f"job:{row.pk}"), WorkerLostError())
    assert status(row) == row_is


@pytest.mark.slow
def test_a_shutdown_of_a_gevent_worker_takes_all_starts_back(
    process_env: Callable[[], dict[str, str]],
) -> None:
    """Its signal handlers run in the hub, which must not wait for a thread to start."""
    pytest.importorskip("gevent")
    source = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, signal, time, django; django.setup()
from celery.signals import worker_shutting_down
from celery.worker import state
from django_tasklock.celery import request
taken = []
class Ours:
    def __init__(self): self.attempts = self
    def take_back(self): gevent.sleep(0.01); taken.append(self)
class Request(request.LockedRequest):
    def __init__(self): self.ours = Ours()
running = [Request(), Request()]
state.active_requests.update(running)
signal.signal(signal.SIGALRM, lambda *_: worker_shutting_down.send(None))
signal.setitimer(signal.ITIMER_REAL, 0.2)
end = time.monotonic() + 10
while len(taken) < 2 and time.monotonic() < end: gevent.sleep(0.05)
print(len(taken))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], env=process_env(), capture_output=True, check=False
    )
    assert done.stdout == b"2\n", done.stderr.decode()
