"""An exception that comes between any two instructions, as from the handler of a signal, leaves no
lock behind."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from types import FrameType
from typing import Any

import pytest

from django_tasklock import Lease, lock, locks
from django_tasklock._engine.lock import LockContext
from tests.conftest import UseRedis
from tests.inside import is_renewed, kept, look_often
from tests.interruptions import (
    SOON_SECONDS,
    Exit,
    Interrupt,
    at_every_instruction,
    in_finalizer,
)
from tests.mailroom import Mailroom, mailroom
from tests.seeds import drawn_seed
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, taken
from tests.waiting import until

NAMES = ("seat:1", "seat:2")
PERMITS = ("video:1#1", "video:1#2", "tasklock-queue:video:1")


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    use_redis()
    look_often(monkeypatch, 0.02)


@pytest.fixture(params=[True, False], ids=["renewed", "not renewed"])
def renew(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reentrant": {"reentrant": True},
    "cooling": {"cooldown": 0.01},
    "slots": {"slots": 2},
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of one kind of lock."""
    return dict(request.param)


class TestEveryInstruction:
    """Those of the call of `lock`, which takes nothing yet, are left out where that is simple."""

    def test_of_a_block(self, renew: bool, kind: dict[str, Any]) -> None:
        made: list[LockContext[Lease]] = []

        def use_it(name: str) -> None:
            with made.pop():
                pass

        def make() -> None:
            made[:] = [lock("video:1", ttl=LONG, renew=renew, **kind)]

        assert at_every_instruction(use_it, "video:1", "use_it", PERMITS, before=make) > 100

    def test_of_a_block_that_has_the_lease(self) -> None:
        def use_it(name: str) -> None:
            with lock(name, ttl=LONG) as lease:
                lease.assert_held()

        assert at_every_instruction(use_it, "video:1", "use_it") > 100

    def test_of_a_decorated_call(self, kind: dict[str, Any]) -> None:
        options: Any = kind

        @lock("video:1", ttl=LONG, **options)  # type: ignore[untyped-decorator]
        def use_it() -> None: ...

        assert at_every_instruction(lambda name: use_it(), "video:1", "use_it", PERMITS) > 100

    @pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "plain"])
    def test_of_a_block_of_several(self, reentrant: bool) -> None:
        made: list[LockContext[list[Lease]]] = []

        def use_it(name: str) -> None:
            with made.pop():
                pass

        def make() -> None:
            made[:] = [lock(NAMES, ttl=LONG, reentrant=reentrant)]

        assert at_every_instruction(use_it, "seat:1", "use_it", ("seat:2",), before=make) > 200

    def test_of_a_refusal_of_several(self) -> None:
        other = taken("seat:3", renew=True)

        def use_it(name: str) -> None:
            assert locks.acquire_all([*NAMES, "seat:3"], ttl=LONG) is None

        assert at_every_instruction(use_it, "seat:1", "use_it", ("seat:2",)) > 200
        assert other.held
        assert holder("seat:3").token == other.token

    def test_of_a_block_inside_leaves_the_outer_one_its_lease(self, renew: bool) -> None:
        made: list[LockContext[list[Lease]]] = []

        def use_it(name: str) -> None:
            with made.pop():
                pass

        def make() -> None:
            made[:] = [lock(NAMES, ttl=LONG, reentrant=True)]

        def still_held(where: list[str]) -> None:
            assert (outer.held, outer.renew) == (True, renew), where
            assert holder("seat:2").token == outer.token, where

        with lock("seat:2", ttl=60 * LONG, renew=renew, reentrant=True) as outer:
            at_every_instruction(use_it, "seat:1", "use_it", before=make, after=still_held)
        assert not locks.is_locked("seat:2")

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

            def soon() -> bool:
                time.sleep(0.03)
                return others.pop().release()

            Meanwhile(soon)

        def release(where: list[str]) -> None:
            until(lambda: len(others) < slots)
            for lease in others:
                lease.release()

        assert at_every_instruction(
            use_it, "video:1", "use_it", PERMITS, before=take, after=release
        )

    def test_of_a_release(self, renew: bool) -> None:
        """The lease is still referred to."""
        leases: list[Lease] = []

        def take() -> None:
            leases.append(taken("video:1", ttl=LONG, renew=renew))

        def begun(where: list[str]) -> None:
            if leases[-1].held:  # Only the interruption at its beginning leaves the lease as it is.
                assert where[0].startswith("release+")
                assert leases[-1].release()

        release = lambda name: leases[-1].release()  # noqa: E731
        assert at_every_instruction(release, "video:1", before=take, after=begun) > 25

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


class TestRunOfATask:
    @pytest.fixture
    def room(self, on_redis: None, redis_server: RedisServer) -> Iterator[Mailroom]:
        with mailroom(redis_server.url) as room:
            yield room

    @pytest.mark.parametrize("error", [pytest.param(Interrupt, marks=pytest.mark.nightly), Exit])
    def test_its_beginning(self, room: Mailroom, renew: bool, error: type[BaseException]) -> None:
        def begun(task: Any, job: Any) -> None:
            sys.settrace(None)

        room.task(begun, acks_late=True, lock_ttl=LONG, lock_renew=renew).delay(1)
        message = room.take()

        def deliver(name: str) -> None:
            # In a context of its own, as each delivery is: what is interrupted may stay in it.
            copy_context().run(room.deliver, message)

        assert at_every_instruction(deliver, "job:1", error=error) > 100


class Alarms:
    """SIGALRM at random moments, for so many seconds, whose handler raises `Interrupt`."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.chance = random.Random(drawn_seed())

    def over(self) -> bool:
        return time.monotonic() >= self.ends

    def __enter__(self) -> Alarms:
        self.before = signal.signal(signal.SIGALRM, self.handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        # Python tells nobody of an exception in a finalizer.
        if in_finalizer(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
        else:
            raise Interrupt

    def interrupt(self, work: Callable[[int], None]) -> int:
        """Do the work again and again. Returns how often it was interrupted."""
        interrupted = number = 0
        while not self.over():
            number += 1
            with suppress(Interrupt):  # It may come just after the work.
                try:
                    signal.setitimer(signal.ITIMER_REAL, self.chance.uniform(0.0001, 0.01))
                    work(number)
                except Interrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        return interrupted


class TestSignals:
    @pytest.fixture(params=[3.0, pytest.param(60.0, marks=pytest.mark.nightly)], ids=["", "long"])
    def alarms(self, request: pytest.FixtureRequest) -> Iterator[Alarms]:
        with Alarms(request.param) as alarms:
            yield alarms

    # An interrupted client of Redis leaves its socket to the garbage collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_at_random_moments(self, alarms: Alarms) -> None:
        """Blocks of all kinds, some of which wait, and bare leases that are collected."""

        @lock("call:{number}", ttl=LONG)
        def called(number: int) -> None: ...

        def use_them(number: int) -> None:
            a, b, c = f"a:{number}", f"b:{number}", f"c:{number}"
            with (
                lock(a, ttl=LONG, renew=False),
                lock(b, ttl=LONG, reentrant=True),
                lock([b, c], ttl=LONG, reentrant=True),
            ):
                called(number)
            with lock("contended", ttl=LONG, wait=None):
                pass

        def contend() -> None:
            while not alarms.over():
                with lock("contended", ttl=LONG, wait=None):
                    time.sleep(0.001)

        use_them(0)  # The store is made by then.
        other = Meanwhile(contend)
        interrupted = alarms.interrupt(use_them)
        other.result()
        print(f"{interrupted} interruptions")
        assert interrupted > 100
        until(lambda: locks.count() == 0, "the end of all", SOON_SECONDS)
        until(lambda: kept() == 0, "the end of all tokens", SOON_SECONDS)
