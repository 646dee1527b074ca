"""``lock_max_attempts``: a start that no orderly end has followed counts, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from celery.exceptions import Reject, WorkerShutdown

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.signals import lock_acquired
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Message, mailroom
from tests.nights import by_day
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import Meanwhile, Traffic, killed_in_child, waiting
from tests.waiting import until

pytestmark = pytest.mark.slow  # Most of them kill a process.


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    use_redis()
    with mailroom(redis_server.url) as room:
        yield room


class Ledger:
    """The runs of a body, in whatever process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def note(self, job: Any) -> None:
        with self._path.open("a") as file:
            file.write(f"{job}\n")

    @property
    def runs(self) -> int:
        return len(self._path.read_text().splitlines())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def poison(room: Mailroom, ledger: Ledger, **options: Any) -> Any:
    """A task that kills its process."""

    def work(self: Any, job: Any) -> None:
        ledger.note(job)
        die()

    return room.task(work, acks_late=True, **options)


def assert_given_up(room: Mailroom, message: Message, runs: int) -> None:
    state, error = room.deliver(message, redelivered=True)
    assert (state, type(error)) == ("FAILURE", TooManyAttempts)
    assert error.runs == runs
    assert not locks.is_locked("job:1")


def test_a_message_that_kills_its_worker_each_time_is_given_up(
    room: Mailroom, ledger: Ledger
) -> None:
    poison(room, ledger, lock_max_attempts=3).delay(1)
    message = room.take()
    for number in range(3):
        killed_in_child(partial(room.deliver, message, redelivered=number > 0))
    assert_given_up(room, message, 3)
    assert_given_up(room, message, 3)
    assert ledger.runs == 3


def test_a_run_that_waited_for_its_lock_counts_too(room: Mailroom, ledger: Ledger) -> None:
    """The lock is handed over to it in its last holder's release."""
    poison(room, ledger, lock_max_attempts=1, lock_wait=30).delay(1)
    message = room.take()

    def release_when_waited_for() -> None:
        with lock("job:1", ttl=60):
            held.append(True)
            until(lambda: waiting("job:1"), "a waiter")

    held: list[bool] = []
    first = Meanwhile(release_when_waited_for)
    until(lambda: held, "the first holder")
    killed_in_child(lambda: room.deliver(message))
    first.result()
    assert_given_up(room, message, 1)
    assert ledger.runs == 1


@pytest.mark.parametrize("how", ["rejects", "is interrupted"])
def test_an_orderly_end_does_not_count(room: Mailroom, ledger: Ledger, how: str) -> None:
    def work(self: Any, job: Any) -> str:
        ledger.note(job)
        if ledger.runs > 6:
            return "done"
        if how == "rejects":
            raise Reject("not now", requeue=True)
        raise WorkerShutdown

    room.task(work, acks_late=True, lock_max_attempts=1).delay(1)
    message = room.take()
    for number in range(6):
        try:
            state, _ = room.deliver(message, redelivered=number > 0)
        except WorkerShutdown:
            assert how == "is interrupted"
        else:
            assert state == "REJECTED"
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done")
    assert ledger.runs == 7


def test_orderly_ends_do_not_hide_the_others(room: Mailroom, ledger: Ledger) -> None:
    def work(self: Any, job: Any) -> None:
        ledger.note(job)
        if ledger.runs % 2:
            raise Reject("not now", requeue=True)
        die()

    room.task(work, acks_late=True, lock_max_attempts=2).delay(1)
    message = room.take()
    for number in range(4):
        if number % 2:
            killed_in_child(lambda: room.deliver(message, redelivered=True))
        else:
            assert room.deliver(message, redelivered=number > 0)[0] == "REJECTED"
    assert_given_up(room, message, 2)
    assert ledger.runs == 4


@pytest.mark.nightly
def test_a_message_that_only_waited_for_its_lock_runs(room: Mailroom, ledger: Ledger) -> None:
    task = room.task(
        lambda self, job: ledger.note(job), acks_late=True, lock_max_attempts=1, on_conflict="retry"
    )
    task.delay(1)
    with lock("job:1", ttl=60):
        message = room.take()
        for number in range(3):
            assert room.deliver(message, redelivered=number > 0)[0] == "IGNORED"
            message = room.take()
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert ledger.runs == 1


def test_a_run_that_was_interrupted_while_it_took_its_lock_does_not_count(
    room: Mailroom, ledger: Ledger
) -> None:
    """Redis has granted the lock and written the note; the worker goes down before it begins."""

    def go_down(**_: Any) -> NoReturn:
        raise SystemExit

    task = room.task(lambda self, job: ledger.note(job), acks_late=True, lock_max_attempts=1)
    task.delay(1)
    message = room.take()
    lock_acquired.connect(go_down)
    try:
        with pytest.raises(SystemExit):
            room.deliver(message)
    finally:
        lock_acquired.disconnect(go_down)
    until(lambda: not locks.is_locked("job:1"), "the release")
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert ledger.runs == 1


class TestTheStoreIsSilent:
    """What was written, or could not be written, is put right as soon as it answers."""

    @pytest.fixture
    def proxy(self, use_redis: UseRedis, room: Mailroom, cut_proxy: CutProxy) -> CutProxy:
        use_redis(cut_proxy.url)
        room.app.conf.task_ignore_result = True  # The notes alone say what has happened.
        return cut_proxy

    def ask_in_vain(
        self, room: Mailroom, proxy: CutProxy, message: Message, lost: bytes = b"job:1", **how: bool
    ) -> Message:
        """Redis grants the lock, and writes the note, and the worker gets no answer. Returns the
        message that is in the queue then."""
        proxy.drop_reply(to=lost, times=99)
        assert room.deliver(message, **how)[0] == "IGNORED"
        proxy.drop_reply(times=0)
        self.until_released()
        return room.take()

    def until_released(self) -> None:
        until(lambda: not locks.count("job:1"), "the release of what nobody wants")

    @pytest.mark.parametrize(("wait", "slots"), by_day((0, 1), (5, 1), (5, 2)))
    def test_an_acquire_without_an_answer_does_not_count(
        self, room: Mailroom, proxy: CutProxy, ledger: Ledger, wait: float, slots: int
    ) -> None:
        options = {"lock_max_attempts": 1, "lock_wait": wait, "lock_slots": slots}
        room.task(lambda self, job: ledger.note(job), acks_late=True, **options).delay(1)
        message = self.ask_in_vain(room, proxy, room.take())
        # It was prefetched by a worker that was killed before it came to it.
        assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
        assert ledger.runs == 1

    def test_deaths_before_it_count(self, room: Mailroom, proxy: CutProxy, ledger: Ledger) -> None:
        poison(room, ledger, lock_max_attempts=2).delay(1)
        message = room.take()
        killed_in_child(lambda: room.deliver(message))
        locks.clear("job:1")
        for _ in range(2):
            message = self.ask_in_vain(room, proxy, message, redelivered=True)
        killed_in_child(lambda: room.deliver(message, redelivered=True))
        assert_given_up(room, message, 2)
        assert ledger.runs == 2

    @pytest.mark.parametrize("cooldown", by_day(0, 0.5))
    def test_a_run_whose_release_got_no_answer_is_not_run_again(
        self, room: Mailroom, proxy: CutProxy, ledger: Ledger, cooldown: float
    ) -> None:
        def work(self: Any, job: Any) -> None:
            ledger.note(job)
            proxy.refuse()
            proxy.cut()

        room.task(work, acks_late=True, lock_cooldown=cooldown).delay(1)
        message = room.take()
        assert room.deliver(message)[0] == "SUCCESS"
        proxy.accept()
        self.until_released()
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        assert not room.waiting()
        assert ledger.runs == 1


WORKER = """
import sys, threading, time
import django; django.setup()
from celery import Celery
from celery.app.trace import build_tracer
from django_tasklock.celery import LockedTask
app = Celery("x", broker="memory://", backend="cache+memory://", fixups=[])
begun = threading.Event()
def body(self, job):
    begun.set()
    time.sleep(60)
task = app.task(
    body, bind=True, name="left", base=LockedTask, lock_name="job:{job}", acks_late=True
)
app.finalize()
trace = build_tracer(task.name, task, app=app)
request = {"id": "once", "is_eager": False, "delivery_info": {}}
threading.Thread(target=trace, args=("once", (1,), {}, request), daemon=True).start()
assert begun.wait(20)
"""


@pytest.mark.nightly
def test_a_run_that_its_processs_exit_cuts_short_does_not_count(
    room: Mailroom, ledger: Ledger, process_env: Callable[[], dict[str, str]]
) -> None:
    """As a cold shutdown does with greenlets: their bodies never come to their end."""
    done = subprocess.run([sys.executable, "-c", WORKER], env=process_env(), timeout=60)
    assert done.returncode == 0
    assert locks.is_locked("job:1")
    options = {"name": "left", "acks_late": True, "lock_max_attempts": 1}
    room.task(lambda self, job: ledger.note(job), **options)
    room.app.send_task("left", (1,), task_id="once")
    assert room.deliver(room.take(), redelivered=True)[0] == "SUCCESS"
    assert ledger.runs == 1


@pytest.mark.parametrize("wait", by_day(0, 30))
def test_to_remember_starts_takes_no_round_trip(
    room: Mailroom, redis_server: RedisServer, use_redis: UseRedis, wait: float
) -> None:
    room.app.conf.task_ignore_result = True
    task = room.task(lambda self, job: None, acks_late=True, lock_wait=wait)
    for job in range(3):
        task.delay(job)
    first, *others = [room.take() for _ in range(3)]
    if wait:
        # A process that has waited before waits in the queue with its first question.
        with lock("job:0", ttl=60):
            waiter = Meanwhile(lambda: room.deliver(first))
            until(lambda: waiting("job:0"), "a waiter")
        waiter.result()
    traffic = Traffic(redis_server)
    for message in others:
        assert room.deliver(message) == ("SUCCESS", None)
    commands = traffic.commands()
    assert traffic.scripts() == 4
    # The lock, the note of the start, and that of the end.
    assert commands["set"] == 3 * len(others)
