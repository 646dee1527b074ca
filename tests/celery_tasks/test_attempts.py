"""``lock_max_attempts``: a start that no orderly end has followed counts, and nothing else."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import Mock

import pytest
from celery.exceptions import Reject
from django.db import OperationalError, connection

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from tests.app.models import Job
from tests.celery_tasks.conftest import away, job_guard, raising, status
from tests.conftest import UseRedis
from tests.mailroom import ORIGINAL, REDELIVERY, Mailroom, Message, Runs, killed_in_body
from tests.nights import by_day
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, taken, waiting
from tests.waiting import until

pytestmark = pytest.mark.slow  # Most of them kill a process.


def assert_given_up(room: Mailroom, message: Message, runs: int) -> None:
    assert room.fails(message, TooManyAttempts, redelivered=True).runs == runs
    assert not locks.is_locked("job:1")


@pytest.mark.parametrize(
    "deliveries",
    [(ORIGINAL, REDELIVERY, REDELIVERY), (REDELIVERY, ORIGINAL)],
    ids=["one after the other", "an original after its redelivery"],
)
def test_a_message_that_kills_its_worker_each_time_is_given_up(
    room: Mailroom, deliveries: tuple[bool, ...]
) -> None:
    # Given a job whose process is killed at each delivery, as often as may be
    runs = Runs()
    message = room.message(runs, acks_late=True, lock_max_attempts=len(deliveries))
    for marked in deliveries:
        killed_in_body(room, message, redelivered=marked)

    # I expect all later deliveries to fail, with the number of the deaths
    for _ in range(2):
        assert_given_up(room, message, len(deliveries))

    # And its body not to be called for them
    assert runs == []


@pytest.mark.parametrize("silent", [False, True], ids=["", "its database is silent"])
def test_the_row_of_a_message_that_is_given_up_has_failed(
    room: Mailroom, row: Job, silent: bool
) -> None:
    message = room.message(job=row.pk, acks_late=True, lock_max_attempts=1, guard=job_guard())
    killed_in_body(room, message)
    assert status(row) == "working"
    no_answer = connection.execute_wrapper(Mock(side_effect=OperationalError))
    with no_answer if silent else ExitStack():
        room.fails(message, TooManyAttempts, redelivered=True)
    assert status(row) == ("working" if silent else "failed")


def test_a_run_that_waited_for_its_lock_counts_too(room: Mailroom) -> None:
    """The lock is handed over to it in its last holder's release."""
    message = room.message(acks_late=True, lock_max_attempts=1, lock_wait=30)
    lease = taken("job:1")
    release = Meanwhile(lambda: until(lambda: waiting("job:1"), "a waiter") and lease.release())
    killed_in_body(room, message)
    assert release.result()
    assert_given_up(room, message, 1)


def test_an_orderly_end_neither_counts_nor_hides_the_others(room: Mailroom) -> None:
    runs = Runs(raising(Reject("not now", requeue=True)))
    message = room.message(runs, acks_late=True, lock_max_attempts=2)
    for marked in (ORIGINAL, REDELIVERY):
        assert room.deliver(message, redelivered=marked)[0] == "REJECTED"
        killed_in_body(room, message, redelivered=True)
    assert_given_up(room, message, 2)
    assert len(runs) == 2


def test_33_a_body_that_ends_its_process_itself_counts(room: Mailroom) -> None:
    message = room.message(raising(SystemExit()), acks_late=True, lock_max_attempts=2)
    for marked in (ORIGINAL, REDELIVERY):
        with pytest.raises(SystemExit):
            room.deliver(message, redelivered=marked)
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
    room: Mailroom, proxy: CutProxy, wait: float, slots: int
) -> None:
    options = {"lock_max_attempts": 1, "lock_wait": wait, "lock_slots": slots}
    message = ask_in_vain(room, proxy, room.message(acks_late=True, **options))
    # It was prefetched by a worker that was killed before it came to it.
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")


def test_deaths_before_it_count(room: Mailroom, proxy: CutProxy) -> None:
    message = room.message(acks_late=True, lock_max_attempts=2)
    killed_in_body(room, message)
    locks.clear("job:1")
    for _ in range(2):
        message = ask_in_vain(room, proxy, message, redelivered=True)
    killed_in_body(room, message, redelivered=True)
    assert_given_up(room, message, 2)


@pytest.mark.parametrize("cooldown", by_day(0, 0.5))
def test_a_run_whose_release_got_no_answer_is_not_run_again(
    room: Mailroom, proxy: CutProxy, cooldown: float
) -> None:
    runs = Runs(lambda self, job: away(proxy))
    message = room.message(runs, acks_late=True, lock_ttl=3600, lock_cooldown=cooldown)
    assert room.deliver(message)[0] == "SUCCESS"
    proxy.accept()
    until(lambda: not locks.count("job:1"), "the release")
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert (room.ids(), len(runs)) == ([], 1)


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
