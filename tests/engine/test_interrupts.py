"""An exception that comes between any two instructions, as from the handler of a signal, leaves no
lock behind."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from types import FrameType
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from django.db import transaction

from django_tasklock import Lease, lock, locks
from django_tasklock.stores import stores
from tests.inside import call_until_lost, connect_by, is_renewed, kept, look_often, retry_soon
from tests.interruptions import (
    EVERY,
    NEVER,
    SOON_SECONDS,
    Exit,
    Interrupt,
    assert_nothing_is_kept,
    at_every_instruction,
    before_first,
    in_finalizer,
    interrupted,
)
from tests.mailroom import mailroom
from tests.seeds import drawn_seed
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, ends, holder, taken
from tests.waiting import until

NAMES = ("seat:1", "seat:2")
PERMITS = ("video:1#1", "video:1#2")


@pytest.fixture(autouse=True)
def _look_often(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch, 0.02)


renewed_or_not = pytest.mark.parametrize("renew", [True, False])


def blocks(names: Any, **options: Any) -> dict[str, Any]:
    """A block, without the call of `lock`, which takes nothing yet: that is made before."""
    made: list[Any] = []

    def use_it(name: str) -> None:
        with made.pop():
            pass

    def make() -> None:
        made[:] = [lock(names, ttl=LONG, **options)]

    return {"work": use_it, "also": "use_it", "before": make}


def each_on_a_new_lease(renew: bool, verb: str, after: Callable[[Lease, list[str]], None]) -> int:
    """`at_every_instruction` of a lease's ``verb``, and what is true ``after`` each run."""
    leases: list[Lease] = []

    def take() -> None:
        leases.append(taken("video:1", ttl=LONG, renew=renew))

    def work(name: str) -> None:
        getattr(leases[-1], verb)()

    def look(where: list[str]) -> None:
        after(leases[-1], where)

    return at_every_instruction(work, "video:1", before=take, after=look)


class TestEveryInstruction:
    def test_of_a_block_that_has_the_lease(self) -> None:
        # Given a block whose lease is used
        def use_it(name: str) -> None:
            with lock(name, ttl=LONG) as lease:
                lease.assert_held()

        # I expect the lock to be free soon, before whichever instruction of it an exception comes
        assert at_every_instruction(use_it, "video:1", "use_it") > 100

    @pytest.mark.parametrize(
        "options",
        [{"renew": False}, {"reentrant": True}, {"cooldown": 0.01}, {"slots": 2}],
        ids=str,
    )
    def test_of_a_block_of_each_kind(self, options: dict[str, Any]) -> None:
        work = blocks("video:1", **options)
        assert at_every_instruction(name="video:1", others=PERMITS, **work) > 100

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_of_a_block_of_several(self, reentrant: bool) -> None:
        work = blocks(NAMES, reentrant=reentrant)
        assert at_every_instruction(name="seat:1", others=NAMES, **work) > 200

    def test_of_a_decorated_call(self) -> None:
        @lock("video:1", ttl=LONG)
        def use_it(name: str) -> None: ...

        assert at_every_instruction(use_it, "video:1", "use_it") > 100

    @pytest.mark.django_db(transaction=True)
    def test_of_a_block_that_lasts_until_the_commit(self) -> None:
        made = blocks("video:1", until_commit=True)

        def use_it(name: str) -> None:
            with transaction.atomic():
                made["work"](name)

        assert at_every_instruction(use_it, "video:1", before=made["before"]) > 100

    def test_of_a_body_that_stops_at_a_loss(self) -> None:
        def use_it(name: str) -> None:
            with lock(name, ttl=LONG) as lease:
                call_until_lost(lease, tuple)

        def put_back(where: list[str]) -> None:
            assert signal.getsignal(signal.SIGUSR2) == before, where

        before = signal.getsignal(signal.SIGUSR2)
        assert at_every_instruction(use_it, "video:1", "use_it", after=put_back) > 100

    @renewed_or_not
    def test_of_a_block_inside_leaves_the_outer_one_its_lease(self, renew: bool) -> None:
        def still_held(where: list[str]) -> None:
            assert (outer.held, outer.renew) == (True, renew), where
            assert holder("seat:2").token == outer.token, where

        with lock("seat:2", ttl=60 * LONG, renew=renew, reentrant=True) as outer:
            work = blocks(NAMES, reentrant=True)
            at_every_instruction(name="seat:1", after=still_held, **work)
        assert not locks.is_locked("seat:2")

    def test_of_a_refusal_of_several(self) -> None:
        other = taken("seat:3", renew=True)

        def use_it(name: str) -> None:
            assert locks.acquire_all([*NAMES, "seat:3"], ttl=LONG) is None

        assert at_every_instruction(use_it, "seat:1", "use_it", ("seat:2",)) > 200
        assert (other.held, other.token) == (True, holder("seat:3").token)

    # Nobody is told of an exception where a generator that is dropped is closed.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.nightly)])
    def test_of_a_wait(self, slots: int) -> None:
        others: list[Lease] = []

        def use_it(name: str) -> None:
            with lock(name, ttl=LONG, wait=LONG, slots=slots):
                pass

        def take() -> None:
            others[:] = [taken("video:1", slots=slots) for _ in range(slots)]
            threading.Timer(0.01, lambda: others.pop().release()).start()

        def release(where: list[str]) -> None:
            until(lambda: len(others) < slots)
            for lease in others:
                lease.release()
            store: Any = stores["default"]
            assert not any(each._hearings for each in store.listeners.own()), where

        at_every_instruction(use_it, "video:1", "use_it", PERMITS, before=take, after=release)

    @renewed_or_not
    def test_of_a_release(self, renew: bool) -> None:
        def begun(lease: Lease, where: list[str]) -> None:
            if lease.held:  # Only the interruption at its beginning leaves the lease as it is.
                assert where[0].startswith("release+")
                assert lease.release()

        assert each_on_a_new_lease(renew, "release", begun) > 25

    @renewed_or_not
    def test_of_a_detachment(self, renew: bool) -> None:
        def begun(lease: Lease, where: list[str]) -> None:
            if lease.held:  # Interrupted at its beginning, it leaves the lease as it is.
                assert lease.release(), where
            if lease.detached:  # Its last instructions: it goes on until its end.
                assert not is_renewed("video:1"), where
                locks.clear("video:1")

        assert each_on_a_new_lease(renew, "detach", begun) > 50

    @renewed_or_not
    def test_of_an_acquire(self, renew: bool) -> None:
        def acquire(name: str) -> None:
            lease = locks.acquire(name, ttl=LONG, renew=renew)
            sys.settrace(None)
            assert lease is not None
            lease.release()

        def clear(where: list[str]) -> None:
            if where and where[0].startswith(("acquire+", "alone+")):
                # Its last instructions: the lease ends with its ttl, and is not renewed.
                until(lambda: not is_renewed())
                locks.clear("video:1")

        assert at_every_instruction(acquire, "video:1", after=clear) > 100


def test_an_interrupted_extension_ends_no_renewal() -> None:
    """Not even while the exception is handled, which refers to what was interrupted."""
    errors, leases, number = list[Interrupt](), list[tuple[Lease, list[str]]](), before_first()

    def extend(lease: Lease) -> None:
        try:
            lease.extend()
        except Interrupt as error:
            errors.append(error)

    with interrupted(NEVER):
        extend(taken("video:0"))
    while not leases or leases[-1][1]:
        number += EVERY
        lease = taken(f"video:{number}", ttl=RENEWED, renew=True)
        with interrupted(number) as where:
            extend(lease)
        leases.append((lease, where))
    assert len(errors) * EVERY > 50
    last = ends(leases[-1][0])
    for lease, where in leases:  # Which all began before the last one.
        until(lambda: not lease.held or ends(lease) > last + 0.05, f"an extension after {where}")  # noqa: B023
        assert lease.held, where
        assert (lease.extend(LONG), lease.release()) == (True, True), where


@renewed_or_not
@pytest.mark.parametrize("error", [pytest.param(Interrupt, marks=pytest.mark.nightly), Exit])
def test_of_a_task(redis_server: RedisServer, renew: bool, error: type[BaseException]) -> None:
    def begun(task: Any, job: Any) -> None:
        sys.settrace(None)

    with mailroom(redis_server.url) as room:
        room.task(begun, acks_late=True, lock_ttl=LONG, lock_renew=renew).delay(1)
        message = room.take()

        def deliver(name: str) -> None:
            # In a context of its own, as each delivery is: what is interrupted may stay in it.
            copy_context().run(room.deliver, message)

        assert at_every_instruction(deliver, "job:1", error=error) > 100


def test_an_interrupted_subscription_keeps_nothing_of_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even until the next garbage collection: that block would keep its lock meanwhile."""

    def interrupt(connection: object) -> None:
        raise Interrupt

    held = taken("a")
    connect_by(monkeypatch, interrupt)
    assert_nothing_is_kept(lambda _: lock("a", wait=5).__enter__(), Interrupt)
    assert held.release()


# An interrupted client of Redis leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.nightly)])
def test_at_random_moments_of_blocks_of_all_kinds(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of which wait, and are interrupted in the moment of the hand-over."""
    retry_soon(monkeypatch)
    chance, over, cut = random.Random(drawn_seed()), time.monotonic() + seconds, list[int]()

    def goes_on() -> bool:
        return time.monotonic() < over or len(cut) < 100

    def alarm(signum: int, frame: FrameType | None) -> None:
        if in_finalizer(frame):  # Python tells nobody of an exception there.
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
        else:
            cut.append(number)
            raise SoftTimeLimitExceeded

    def use_them(number: int) -> None:
        a, b, c = (f"{name}:{number}" for name in "abc")
        with lock(a, renew=False), lock(b, reentrant=True), lock([b, c], reentrant=True):
            pass
        with lock("contended", wait=None):
            pass

    def contend() -> None:
        while goes_on():
            with lock("contended", wait=None):
                time.sleep(0.001)

    number = 0
    use_them(number)  # The store is made by then.
    other, before = Meanwhile(contend), signal.signal(signal.SIGALRM, alarm)
    while goes_on():
        number += 1
        with suppress(SoftTimeLimitExceeded):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.01))
                use_them(number)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    other.result()
    until(lambda: locks.count() + kept() == 0, "the end of all", SOON_SECONDS)
