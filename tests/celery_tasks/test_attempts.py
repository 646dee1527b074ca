"""``lock_max_attempts``: a start that no orderly end has followed counts, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Reject
from django.db import OperationalError, connection

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, status
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Message, killed_in_body
from tests.nights import by_day
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, killed_in_child, taken, waiting
from tests.waiting import until

pytestmark = pytest.mark.slow  # Most of them kill a process.
Note = Callable[[], int]


@pytest.fixture
def note(tmp_path: Path) -> Note:
    """Notes a run, in whatever process. Returns how many there were."""
    path = tmp_path / "runs"

    def note() -> int:
        with path.open("a") as file:
            file.write("x")
        return path.stat().st_size

    return note


def poison(room: Mailroom, note: Note, **options: Any) -> Message:
    """The message of a task that kills its process."""

    def work(self: Any, job: Any) -> None:
        note()
        os.kill(os.getpid(), signal.SIGKILL)

    return room.message(work, acks_late=True, **options)


def assert_given_up(room: Mailroom, message: Message, runs: int) -> None:
    assert room.fails(message, TooManyAttempts, redelivered=True).runs == runs
    assert not locks.is_locked("job:1")


@pytest.mark.parametrize(
    "deliveries",
    [("original", "redelivery", "redelivery"), ("redelivery", "original")],
    ids=["one after the other", "an original after its redelivery"],
)
def test_a_message_that_kills_its_worker_each_time_is_given_up(
    room: Mailroom, note: Note, deliveries: tuple[str, ...]
) -> None:
    # Given a job that kills its process at each delivery, and may do so as often
    message = poison(room, note, lock_max_attempts=len(deliveries))
    for delivery in deliveries:
        again = delivery == "redelivery"
        killed_in_child(partial(room.deliver, message, redelivered=again))

    # I expect all later deliveries to fail, with the number of the deaths
    for _ in range(2):
        assert_given_up(room, message, len(deliveries))

    # And its body not to be called for them
    assert note() == len(deliveries) + 1


@pytest.mark.parametrize("silent", [False, True], ids=["", "its database is silent"])
def test_the_row_of_a_message_that_is_given_up_has_failed(
    room: Mailroom, row: Job, silent: bool
) -> None:
    message = room.message(job=row.pk, acks_late=True, lock_max_attempts=1, guard=job_guard())
    killed_in_body(room, message)
    assert status(row) == "working"

    def no_answer(*_: Any) -> None:
        raise OperationalError("no answer")

    with connection.execute_wrapper(no_answer) if silent else ExitStack():
        room.fails(message, TooManyAttempts, redelivered=True)
    assert status(row) == ("working" if silent else "failed")


def test_a_run_that_waited_for_its_lock_counts_too(room: Mailroom, note: Note) -> None:
    """The lock is handed over to it in its last holder's release."""
    message, lease = poison(room, note, lock_max_attempts=1, lock_wait=30), taken("job:1")

    def release_when_waited_for() -> None:
        until(lambda: waiting("job:1"), "a waiter")
        lease.release()

    release = Meanwhile(release_when_waited_for)
    killed_in_child(lambda: room.deliver(message))
    release.result()
    assert_given_up(room, message, 1)


def test_an_orderly_end_neither_counts_nor_hides_the_others(room: Mailroom, note: Note) -> None:
    here = os.getpid()

    def work(self: Any, job: Any) -> None:
        note()
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Reject("not now", requeue=True)

    message = room.message(work, acks_late=True, lock_max_attempts=2)
    for number in range(2):
        assert room.deliver(message, redelivered=number > 0)[0] == "REJECTED"
        killed_in_child(lambda: room.deliver(message, redelivered=True))
    assert_given_up(room, message, 2)
    assert note() == 5


def test_33_a_body_that_ends_its_process_itself_counts(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        raise SystemExit

    message = room.message(work, acks_late=True, lock_max_attempts=2)
    for redelivered in (False, True):
        with pytest.raises(SystemExit):
            room.deliver(message, redelivered=redelivered)
    assert_given_up(room, message, 2)


# ------------------------------------------------------------------------------ a silent store


@pytest.fixture
def proxy(use_redis: UseRedis, room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
    """What is between the tasks and the store; their notes alone say what has happened."""
    use_redis(cut_proxy.url)
    taken("warm").release()  # The server knows the scripts from now on, and runs them.
    room.app.conf.task_ignore_result = True
    return cut_proxy


def ask_in_vain(room: Mailroom, proxy: CutProxy, message: Message, **how: bool) -> Message:
    """Redis grants the lock, and writes the note, and the worker gets no answer. Returns the
    message that is in the queue then."""
    proxy.drop_reply(to=b"job:1", times=99)
    assert room.deliver(message, **how)[0] == "IGNORED"
    proxy.drop_reply(times=0)
    until(lambda: not locks.count("job:1"), "the release of what nobody wants")
    return room.take()


@pytest.mark.parametrize(("wait", "slots"), by_day((0, 1), (5, 1), (5, 2)))
def test_an_acquire_without_an_answer_does_not_count(
    room: Mailroom, proxy: CutProxy, note: Note, wait: float, slots: int
) -> None:
    options = {"lock_max_attempts": 1, "lock_wait": wait, "lock_slots": slots}
    message = room.message(lambda self, job: note(), acks_late=True, **options)
    message = ask_in_vain(room, proxy, message)
    # It was prefetched by a worker that was killed before it came to it.
    assert room.deliver(message, redelivered=True) == ("SUCCESS", 1)


def test_deaths_before_it_count(room: Mailroom, proxy: CutProxy, note: Note) -> None:
    message = poison(room, note, lock_max_attempts=2)
    killed_in_child(lambda: room.deliver(message))
    locks.clear("job:1")
    for _ in range(2):
        message = ask_in_vain(room, proxy, message, redelivered=True)
    killed_in_child(lambda: room.deliver(message, redelivered=True))
    assert_given_up(room, message, 2)
    assert note() == 3


@pytest.mark.parametrize("cooldown", by_day(0, 0.5))
def test_a_run_whose_release_got_no_answer_is_not_run_again(
    room: Mailroom, proxy: CutProxy, note: Note, cooldown: float
) -> None:
    def work(self: Any, job: Any) -> None:
        note()
        proxy.refuse()
        proxy.cut()

    message = room.message(work, acks_late=True, lock_ttl=3600, lock_cooldown=cooldown)
    assert room.deliver(message)[0] == "SUCCESS"
    proxy.accept()
    until(lambda: not locks.count("job:1"), "the release")
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert (room.ids(), note()) == ([], 2)


@pytest.mark.parametrize("wait", by_day(0, 30))
def test_to_remember_starts_takes_no_round_trip(
    room: Mailroom, redis_server: RedisServer, wait: float
) -> None:
    room.app.conf.task_ignore_result = True
    task = room.task(lambda self, job: None, acks_late=True, lock_wait=wait)
    for job in range(3):
        task.delay(job)
    first, *others = [room.take() for _ in range(3)]
    if wait:
        # A process that has waited before waits in the queue with its first question.
        with lock("job:0", ttl=LONG):
            waiter = Meanwhile(lambda: room.deliver(first))
            until(lambda: waiting("job:0"), "a waiter")
        waiter.result()
    traffic = Traffic(redis_server)
    for message in others:
        assert room.deliver(message) == ("SUCCESS", None)
    assert traffic.scripts() == 2 * len(others)
    # The lock, the note of the start, and that of the end.
    assert traffic.commands()["set"] == 3 * len(others)
