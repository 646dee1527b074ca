"""A result backend that does not answer, while the lock store does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import denied_join_result
from django.db import OperationalError, connection

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Message, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import Meanwhile, killed_in_child
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    # What Celery says where it cannot store a result.
    pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]
OUTAGES = pytest.mark.parametrize("on_outage", ["run", "retry", "raise"])


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy) -> Iterator[Mailroom]:
    """Results go through the proxy, messages and locks do not."""
    use_redis()
    with mailroom(redis_server.url) as room:
        room.app.conf.update(
            result_backend=cut_proxy.url,
            redis_socket_timeout=0.5,
            redis_socket_connect_timeout=0.5,
            result_backend_transport_options={
                "retry_policy": {"max_retries": 1, "interval_start": 0, "interval_max": 0}
            },
        )
        # In a pool's child nothing waits for results; elsewhere Celery subscribes to them.
        with denied_join_result():
            yield room


@pytest.fixture
def silence(cut_proxy: CutProxy) -> Callable[[], None]:
    def silent() -> None:
        cut_proxy.refuse()
        cut_proxy.cut()

    return silent


def unstored(room: Mailroom, message: Message, **options: Any) -> None:
    """Deliver a message whose result cannot be stored."""
    with pytest.raises(redis.ConnectionError):
        room.deliver(message, **options)


@OUTAGES
def test_a_redelivery_neither_runs_beside_the_first_run_nor_is_lost(
    room: Mailroom, silence: Callable[[], None], on_outage: str
) -> None:
    runs: list[str] = []
    over = threading.Event()

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        assert over.wait(60)

    room.task(work, acks_late=True, on_outage=on_outage).delay(1)
    message = room.take()
    original = Meanwhile(lambda: unstored(room, message))
    until(lambda: runs, "the original")
    silence()
    for _ in range(2):
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        message = room.take(message.id)
    over.set()
    original.result(60)
    # Its result could not be stored, and the redelivery cannot ask for it: it waits.
    for _ in range(2):
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        message = room.take(message.id)
    assert len(runs) == 1
    assert not locks.is_locked("job:1")


@OUTAGES
def test_a_redelivery_that_never_started_waits_for_the_backend(
    room: Mailroom, silence: Callable[[], None], cut_proxy: CutProxy, on_outage: str
) -> None:
    runs: list[int] = []
    task = room.task(lambda self, job: runs.append(job), acks_late=True, on_outage=on_outage)
    task.delay(1)
    silence()
    message = room.take()
    for _ in range(2):
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        message = room.take(message.id)
    assert runs == []
    cut_proxy.accept()
    assert room.deliver(message, redelivered=True) == ("SUCCESS", None)
    assert runs == [1]


def test_a_redelivery_of_a_run_that_died_runs_without_the_backend(
    room: Mailroom, silence: Callable[[], None], tmp_path: Any
) -> None:
    """Its note says that it was started and has not ended, and its lock is free."""
    died = tmp_path / "died"

    def work(self: Any, job: Any) -> None:
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "done").touch()

    room.task(work, acks_late=True).delay(1)
    message = room.take()
    killed_in_child(lambda: room.deliver(message))
    silence()
    unstored(room, message, redelivered=True)
    assert (tmp_path / "done").exists()
    assert room.waiting() == []


def test_a_redelivery_does_not_take_the_lock_to_wait_for_the_backend(
    room: Mailroom, silence: Callable[[], None]
) -> None:
    """Other calls would be skipped because of it."""
    task = room.task(acks_late=True)
    task.delay(1)
    message = room.take()
    silence()
    with lock("job:1", ttl=60):
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    (waiting,) = room.waiting()
    assert waiting.ours["copy"] == 1


def test_the_note_of_an_ended_run_is_kept_for_as_long_as_it_is_needed(
    room: Mailroom, silence: Callable[[], None], redis_server: RedisServer
) -> None:
    room.task(acks_late=True).delay(1)
    message = room.take()
    silence()
    unstored(room, message)
    key = next(room.redis.scan_iter(match=f"*run {message.id}*"))
    room.redis.pexpire(key, 10_000)
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.redis.pttl(key) > 60_000


def test_a_soft_time_limit_is_not_the_backends_silence(room: Mailroom, cut_proxy: CutProxy) -> None:
    room.app.conf.redis_socket_timeout = 60

    def too_long(*_: Any) -> None:
        cut_proxy.resume()
        raise SoftTimeLimitExceeded

    def limit() -> None:
        until(asks_its_backend, "the question")
        os.kill(os.getpid(), signal.SIGUSR1)

    room.task(acks_late=True).delay(1)
    before = signal.signal(signal.SIGUSR1, too_long)
    cut_proxy.pause()
    try:
        Meanwhile(limit)
        state, error = room.deliver(room.take(), redelivered=True)
    finally:
        cut_proxy.resume()
        signal.signal(signal.SIGUSR1, before)
    assert (state, type(error)) == ("FAILURE", SoftTimeLimitExceeded)
    assert room.waiting() == []


def asks_its_backend() -> bool:
    """Whether the main thread waits for the answer of a result backend."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return "get_task_meta" in names and "read_response" in names


@pytest.mark.django_db(transaction=True)
def test_a_message_is_given_up_though_the_database_of_its_row_is_silent(room: Mailroom) -> None:
    guard = StatusGuard("app.Job", pk="job", source="queued", to="working", done="done")
    row = Job.objects.create()
    room.task(
        lambda self, job: os.kill(os.getpid(), signal.SIGKILL),
        acks_late=True,
        lock_max_attempts=1,
        guard=guard,
    ).delay(row.pk)
    message = room.take()
    killed_in_child(lambda: room.deliver(message))

    def silent(*_: Any) -> None:
        raise OperationalError("no answer")

    with connection.execute_wrapper(silent):
        state, error = room.deliver(message, redelivered=True)
    assert (state, type(error)) == ("FAILURE", TooManyAttempts)
