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

    def note(times: int = 1) -> int:
        with path.open("a") as file:
            file.write("x" * times)
        return path.stat().st_size

    return note


def poison(room: Mailroom, note: Note, **options: Any) -> Message:
    """The message of a task that kills its process."""

    def work(self: Any, job: Any) -> None:
        note()
        os.kill(os.getpid(), signal.SIGKILL)

    room.task(work, acks_late=True, **options).delay(1)
    return room.take()


def assert_given_up(room: Mailroom, message: Message, runs: int) -> None:
    state, error = room.deliver(message, redelivered=True)
    assert (state, type(error)) == ("FAILURE", TooManyAttempts)
    assert error.runs == runs
    assert not locks.is_locked("job:1")


def test_a_message_that_kills_its_worker_each_time_is_given_up(room: Mailroom, note: Note) -> None:
    message = poison(room, note, lock_max_attempts=3)
    for number in range(3):
        killed_in_child(partial(room.deliver, message, redelivered=number > 0))
    for _ in range(2):
        assert_given_up(room, message, 3)
    assert note() == 4


@pytest.mark.parametrize("silent", [False, True], ids=["", "its database is silent"])
def test_the_row_of_a_message_that_is_given_up_has_failed(
    room: Mailroom, row: Job, silent: bool
) -> None:
    room.task(acks_late=True, lock_max_attempts=1, guard=job_guard()).delay(row.pk)
    killed_in_body(room, message := room.take())
    assert status(row) == "working"

    def no_answer(*_: Any) -> None:
        raise OperationalError("no answer")

    with connection.execute_wrapper(no_answer) if silent else ExitStack():
        state, error = room.deliver(message, redelivered=True)
    assert (state, type(error)) == ("FAILURE", TooManyAttempts)
    assert status(row) == ("working" if silent else "failed")


def test_a_run_that_waited_for_its_lock_counts_too(room: Mailroom, note: Note) -> None:
    """The lock is handed over to it in its last holder's release."""
    message = poison(room, note, lock_max_attempts=1, lock_wait=30)
    held: list[bool] = []

    def release_when_waited_for() -> None:
        with lock("job:1", ttl=LONG):
            held.append(True)
            until(lambda: waiting("job:1"), "a waiter")

    first = Meanwhile(release_when_waited_for)
    until(lambda: held, "the first holder")
    killed_in_child(lambda: room.deliver(message))
    first.result()
    assert_given_up(room, message, 1)


def test_the_deaths_of_an_original_and_its_redelivery_count(room: Mailroom, note: Note) -> None:
    message = poison(room, note, lock_max_attempts=2)
    for redelivered in (True, False):
        killed_in_child(partial(room.deliver, message, redelivered=redelivered))
    assert_given_up(room, message, 2)


def test_an_orderly_end_neither_counts_nor_hides_the_others(room: Mailroom, note: Note) -> None:
    here = os.getpid()

    def work(self: Any, job: Any) -> None:
        note()
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Reject("not now", requeue=True)

    room.task(work, acks_late=True, lock_max_attempts=2).delay(1)
    message = room.take()
    for number in range(2):
        assert room.deliver(message, redelivered=number > 0)[0] == "REJECTED"
        killed_in_child(lambda: room.deliver(message, redelivered=True))
    assert_given_up(room, message, 2)
    assert note() == 5


def test_33_a_body_that_ends_its_process_itself_counts(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        raise SystemExit

    room.task(work, acks_late=True, lock_max_attempts=2).delay(1)
    message = room.take()
    for redelivered in (False, True):
        with pytest.raises(SystemExit):
            room.deliver(message, redelivered=redelivered)
    assert_given_up(room, message, 2)


class TestTheStoreIsSilent:
    """What was written, or could not be written, is put right as soon as it answers."""

    @pytest.fixture
    def proxy(self, use_redis: UseRedis, room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
        use_redis(cut_proxy.url)
        taken("warm").release()  # The server knows the scripts from now on, and runs them.
        room.app.conf.task_ignore_result = True  # The notes alone say what has happened.
        return cut_proxy

    def ask_in_vain(
        self, room: Mailroom, proxy: CutProxy, message: Message, **how: bool
    ) -> Message:
        """Redis grants the lock, and writes the note, and the worker gets no answer. Returns the
        message that is in the queue then."""
        proxy.drop_reply(to=b"job:1", times=99)
        assert room.deliver(message, **how)[0] == "IGNORED"
        proxy.drop_reply(times=0)
        until(lambda: not locks.count("job:1"), "the release of what nobody wants")
        return room.take()

    @pytest.mark.parametrize(("wait", "slots"), by_day((0, 1), (5, 1), (5, 2)))
    def test_an_acquire_without_an_answer_does_not_count(
        self, room: Mailroom, proxy: CutProxy, note: Note, wait: float, slots: int
    ) -> None:
        options = {"lock_max_attempts": 1, "lock_wait": wait, "lock_slots": slots}
        room.task(lambda self, job: note(), acks_late=True, **options).delay(1)
        message = self.ask_in_vain(room, proxy, room.take())
        # It was prefetched by a worker that was killed before it came to it.
        assert room.deliver(message, redelivered=True) == ("SUCCESS", 1)

    def test_deaths_before_it_count(self, room: Mailroom, proxy: CutProxy, note: Note) -> None:
        message = poison(room, note, lock_max_attempts=2)
        killed_in_child(lambda: room.deliver(message))
        locks.clear("job:1")
        for _ in range(2):
            message = self.ask_in_vain(room, proxy, message, redelivered=True)
        killed_in_child(lambda: room.deliver(message, redelivered=True))
        assert_given_up(room, message, 2)
        assert note() == 3

    @pytest.mark.parametrize("cooldown", by_day(0, 0.5))
    def test_a_run_whose_release_got_no_answer_is_not_run_again(
        self, room: Mailroom, proxy: CutProxy, note: Note, cooldown: float
    ) -> None:
        def work(self: Any, job: Any) -> None:
            note()
            proxy.refuse()
            proxy.cut()

        room.task(work, acks_late=True, lock_ttl=3600, lock_cooldown=cooldown).delay(1)
        message = room.take()
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
