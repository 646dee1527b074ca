"""A body that ends when its lease is lost, in the main thread by a signal, and in another one."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connections, transaction

from django_tasklock import Lease, LeaseLost, locks
from tests.app.models import Job
from tests.inside import call_until_lost, lose
from tests.steps import LONG, Meanwhile, taken
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("on_redis")
TTL = 0.9
SOON = PATIENCE / 4
Work = Callable[[], Any]


@pytest.fixture(params=["main", "thread"])
def where(request: pytest.FixtureRequest) -> Callable[[Work], Any]:
    """``where(work)``: what ``work`` returns in the main thread, or in another one."""
    return _here if request.param == "main" else lambda work: Meanwhile(work).result()


def _here(work: Work) -> Any:
    return work()


@contextmanager
def lost(lease: Lease, after: float = 0.05) -> Iterator[None]:
    """Another thread finds soon that the lease is lost, and has done so at the end of the block."""
    thread = threading.Timer(after, lose, [lease])
    thread.start()
    try:
        yield
    finally:
        thread.join()


def stopped(body: Work, lease: Lease | None = None) -> None:
    """A body that does not end before its lease is lost, ends then."""
    lease = taken("video:1") if lease is None else lease
    with pytest.raises(LeaseLost), lost(lease):
        call_until_lost(lease, lambda: not_ended(body()))


def go_on() -> None:
    """What does not look at its lease."""
    with suppress(AssertionError):
        until(lambda: False)
    not_ended()


def not_ended(_: object = None) -> None:
    """Fail, and not with an `Exception`: the loss of the lease would replace that."""
    pytest.fail("it was not ended")


@pytest.mark.django_db(transaction=True)
def test_a_body_that_catches_every_exception_leaves_and_cleans_up(
    where: Callable[[Work], Any],
) -> None:
    cleaned = []

    def body() -> None:
        assert locks.clear("video:1")
        try:
            with transaction.atomic():
                Job.objects.create()
                for _ in range(6000):
                    with suppress(Exception):
                        time.sleep(0.01)
                not_ended()
        finally:
            time.sleep(0.05)
            cleaned.append(Job.objects.count())

    def work() -> None:
        with locks.acquire("video:1", ttl=TTL, renew=True) as lease:  # type: ignore[union-attr]
            call_until_lost(lease, body)

    with pytest.raises(LeaseLost, match="the store no longer has it"):
        where(work)
    assert cleaned == [0]


def test_a_system_call_is_interrupted_in_the_main_thread() -> None:
    began = time.monotonic()
    stopped(lambda: time.sleep(PATIENCE))
    assert time.monotonic() - began < SOON


def test_the_signal_is_the_projects_before_and_after_and_in_a_body() -> None:
    heard = []

    def handler(number: int, frame: Any) -> None:
        heard.append(number)

    def body() -> str:
        os.kill(os.getpid(), signal.SIGUSR2)
        return "done"

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        assert call_until_lost(taken("video:1"), body) == "done"
        assert heard == [signal.SIGUSR2]
        stopped(go_on, taken("video:2"))
        assert heard == [signal.SIGUSR2]
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_each_of_nested_calls_ends_with_its_own_lease(where: Callable[[Work], Any]) -> None:
    leases = {name: taken(name) for name in ("outer", "inner", "last")}

    def losing(name: str) -> None:
        Meanwhile(lambda: lose(leases[name]))
        go_on()

    def until_lost(name: str, body: Work) -> Any:
        return call_until_lost(leases[name], body)

    def body() -> None:
        # The loss of the inner one is an error in the outer one, which goes on
        with pytest.raises(LeaseLost, match="inner"):
            until_lost("inner", lambda: losing("inner"))
        # The loss of the outer one ends both; also after a call under the same lease has ended
        until_lost("outer", tuple)
        until_lost("last", lambda: losing("outer"))

    with pytest.raises(LeaseLost, match="outer"):
        where(lambda: until_lost("outer", body))
    assert leases["last"].held


@pytest.mark.parametrize("names", [("outer", "inner"), ("inner", "outer")])
def test_the_loss_of_two_at_the_same_time_ends_both(
    where: Callable[[Work], Any], names: tuple[str, str]
) -> None:
    leases = {name: taken(name) for name in names}

    def body() -> None:
        Meanwhile(lambda: [*map(lose, leases.values())])
        go_on()

    def outer() -> None:
        call_until_lost(leases["inner"], body)

    with pytest.raises(LeaseLost, match="outer"):
        where(lambda: call_until_lost(leases["outer"], outer))


def test_a_body_that_finds_the_loss_itself_ends_there(where: Callable[[Work], Any]) -> None:
    def work() -> None:
        lease = taken("video:1")

        def body() -> None:
            locks.clear("video:1")
            lease.extend()
            went_on.append(lease)

        with pytest.raises(LeaseLost):
            call_until_lost(lease, body)
        with pytest.raises(LeaseLost):
            call_until_lost(lease, lambda: went_on.append(lease))

    went_on: list[Lease] = []
    where(work)
    assert not went_on


def test_one_that_catches_everything_is_lost_all_the_same_and_an_exit_is_an_exit(
    where: Callable[[Work], Any],
) -> None:
    def exits() -> None:
        try:
            go_on()
        except BaseException:
            raise SystemExit(3) from None

    def catches() -> str:
        with suppress(BaseException):
            go_on()
        return "done"

    def work() -> None:
        with pytest.raises(SystemExit), lost(lease := taken("video:1")):
            call_until_lost(lease, exits)
        with pytest.raises(LeaseLost), lost(lease := taken("video:2")):
            call_until_lost(lease, catches)

    where(work)


def test_an_event_loop_ends_with_all_its_tasks(where: Callable[[Work], Any]) -> None:
    ended = []

    async def wait() -> None:
        try:
            while True:  # noqa: ASYNC110 - in a thread the loop's own waiting is not cut short
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    async def gather() -> None:
        await asyncio.gather(wait(), wait())

    where(lambda: stopped(lambda: asyncio.run(gather())))
    assert ended == [True, True]


@pytest.mark.timeout(60)
def test_a_busy_event_loop_loses_no_task_that_its_end_would_wait_for(
    where: Callable[[Work], Any],
) -> None:
    """An exception amid asyncio's own code may lose the wake-up of a task."""

    async def yields() -> None:
        while True:  # noqa: ASYNC110 - it is to be busy
            await asyncio.sleep(0)

    async def gather(lease: Lease) -> None:
        with lost(lease, random.uniform(0, 0.02)):
            await asyncio.gather(*(yields() for _ in range(5)))

    def work() -> None:
        for number in range(20):
            lease = taken(f"video:{number}")
            # It has more code of its own in debug mode.
            body = partial(asyncio.run, gather(lease), debug=True)
            with pytest.raises(LeaseLost):
                call_until_lost(lease, body)

    where(work)


def test_a_body_under_an_event_loop_is_stopped_and_not_the_loop(
    where: Callable[[Work], Any],
) -> None:
    """As in a worker whose pool is a loop."""

    async def main() -> str:
        stopped(go_on)
        await asyncio.sleep(0.05)
        return "the loop goes on"

    def work() -> str:
        try:
            return asyncio.run(main())
        except KeyboardInterrupt:  # It would end pytest.
            return "the loop is stopped"

    assert where(work) == "the loop goes on"


# A client that is interrupted while it connects loses a socket.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_no_answer_of_redis_is_taken_for_that_to_another_question(
    where: Callable[[Work], Any],
) -> None:
    """Rule 9, of a client that is used in the body."""

    def ask() -> None:
        for number in range(10**9):
            cache.set("number", number)
            assert cache.get("number") == number

    def work() -> None:
        for number in range(40):
            lease = taken(f"video:{number}")
            with pytest.raises(LeaseLost), lost(lease, random.uniform(0, 0.005)):
                call_until_lost(lease, ask)
            cache.set("word", f"word {number}")
            assert cache.get("word") == f"word {number}"

    where(work)
    gc.collect()


def test_a_query_is_cancelled_and_its_connection_goes_on(postgres_alias: str) -> None:
    def query(seconds: float) -> None:
        with connections[postgres_alias].cursor() as cursor:
            cursor.execute("SELECT pg_sleep(%s)", [seconds])

    lease = taken("video:1", ttl=LONG)
    query(0)
    stopped(lambda: query(PATIENCE), lease)
    query(0)
