"""An exception that comes between any two instructions, as from the handler of a signal, leaves no
lock behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, StoreUnavailable, clock, lock, locks, signals
from django_tasklock.lease import new_token
from django_tasklock.owner import owner_record
from django_tasklock.renewal import renewal
from django_tasklock.store_renewal import Entry
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from tests.conftest import UseRedis
from tests.proxy import CutProxy
from tests.steps import LONG, sent, taken, until

ENGINE = tuple(
    f"django_tasklock/{name}.py"
    for name in ("context", "use", "service", "keeper", "lease", "renewal", "store_renewal")
)


class Interrupt(Exception):
    """What the handler of a signal raises."""


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@contextmanager
def interrupted(number: int, also: str = "") -> Iterator[list[str]]:
    """Raise `Interrupt` before the instruction of that number in our own code, or in the function
    named ``also``; the place where is yielded, an empty list if it never came so far."""
    left, where = number, []

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.endswith(ENGINE) and code.co_name != also:
            return None
        if code.co_name == "__del__":
            return None  # Python tells nobody of an exception there, nor in what gc calls.
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                where.append(f"{code.co_name}+{frame.f_lasti}")
                raise Interrupt
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        yield where
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
        gc.enable()


def assert_over(name: str, where: list[str]) -> None:
    until(lambda: not locks.is_locked(name), f"the end of the lock after {where}")

    def nothing_is_renewed() -> bool:
        leases = [entry.lease() for entry in renewal.entries() if isinstance(entry, Entry)]
        if not [lease for lease in leases if lease and lease.renew and lease.held]:
            return True
        # The thread of the renewal looks at it in this moment, or the exception refers to it.
        leases.clear()
        gc.collect()
        return False

    until(nothing_is_renewed, f"the end of the renewal after {where}")


def at_every_instruction(work: Callable[[str], None], name: str, also: str = "") -> int:
    """Run ``work`` until it is interrupted nowhere; return how many times it was."""
    number, missed = 0, 0
    while missed < 3:  # Not every run has as many instructions.
        number += 1
        with interrupted(number, also) as where:
            work(name)
        missed = 0 if where else missed + 1
        assert_over(name, where)
    return number


@pytest.fixture(params=[True, False], ids=["renewed", "not renewed"])
def renew(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class TestEveryInstruction:
    def test_of_a_block(self, renew: bool) -> None:
        def use_it(name: str) -> None:
            with lock(name, ttl=LONG, renew=renew):
                pass

        assert at_every_instruction(use_it, "video:1", "use_it") > 300

    def test_of_a_block_of_a_shared_lock(self, renew: bool) -> None:
        shared = lock("video:1", ttl=LONG, renew=renew)

        def use_it(name: str) -> None:
            with shared:
                pass

        assert at_every_instruction(use_it, "video:1", "use_it") > 300

    def test_of_a_decorated_call(self, renew: bool) -> None:
        @lock("video:1", ttl=LONG, renew=renew)
        def use_it() -> None: ...

        assert at_every_instruction(lambda name: use_it(), "video:1", "use_it") > 300

    def test_of_a_release(self, renew: bool) -> None:
        """It is still referred to."""
        leases: list[Lease] = []

        def prepared(name: str) -> None:
            lease = taken(name, ttl=LONG, renew=renew)
            leases.append(lease)

        number, missed = 0, 0
        while missed < 3:
            number += 1
            prepared("video:1")
            with interrupted(number) as where:
                leases[-1].release()
            missed = 0 if where else missed + 1
            assert_over("video:1", where)
            assert leases[-1].held is False
        assert number > 50

    def test_of_an_acquire(self, renew: bool) -> None:
        def acquire(name: str) -> None:
            lease = locks.acquire(name, ttl=LONG, renew=renew)
            sys.settrace(None)
            assert lease is not None
            lease.release()

        number, missed = 0, 0
        while missed < 3:
            number += 1
            with interrupted(number) as where:
                acquire("video:1")
            missed = 0 if where else missed + 1
            if where and where[0].startswith("acquire+"):
                # Its last instructions: there no signal is looked for.
                locks.clear("video:1")
            assert_over("video:1", where)
        assert number > 200


class TestReleaseThatFailed:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=0.5, SOCKET_CONNECT_TIMEOUT=0.5)

    def fail(self, lease: Lease, proxy: CutProxy) -> None:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            lease.release()

    def test_lease_is_not_held_any_more(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG, renew=True)
        self.fail(lease, cut_proxy)
        assert (lease.held, lease.remaining, lease.extend()) == (False, 0.0, False)
        with pytest.raises(LeaseLost, match="its release was interrupted"):
            lease.assert_held()
        cut_proxy.accept()

    def test_lock_is_free_once_the_store_answers(self, cut_proxy: CutProxy) -> None:
        with sent(signals.lock_released) as released, sent(signals.lock_lost) as lost:
            lease = taken("video:1", ttl=LONG)
            self.fail(lease, cut_proxy)
            cut_proxy.accept()
            until(lambda: not locks.is_locked("video:1"))
            until(lambda: [told["lease"] for told in released] == [lease])
        assert lost == []

    def test_later_call_says_once_that_it_was_ours(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG)
        self.fail(lease, cut_proxy)
        cut_proxy.accept()
        until(lambda: not locks.is_locked("video:1"))
        until(lambda: "released" in repr(lease))
        assert (lease.release(), lease.release()) == (True, False)

    def test_later_call_need_not_wait_for_that(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=LONG)
        for _ in range(5):
            self.fail(lease, cut_proxy)
        cut_proxy.accept()
        assert lease.release() is True
        assert not locks.is_locked("video:1")

    def test_later_call_after_its_end_is_false(self, cut_proxy: CutProxy) -> None:
        lease = taken("video:1", ttl=0.2)
        self.fail(lease, cut_proxy)
        until(lambda: lease._deadline < clock.now())
        assert lease.release() is False
        cut_proxy.accept()

    def test_block_gives_it_up_as_well(self, cut_proxy: CutProxy) -> None:
        def use_it() -> None:
            with lock("video:1", ttl=LONG):
                cut_proxy.refuse()
                cut_proxy.cut()

        with pytest.raises(StoreUnavailable):
            use_it()
        cut_proxy.accept()
        until(lambda: not locks.is_locked("video:1"))


def test_question_that_arrives_after_its_caller_was_interrupted_leaves_no_lock() -> None:
    """It was overtaken by the first look whether the lease was granted."""
    token, store = new_token(), stores["default"]
    renewal.abandon("video:1", token, LONG, store)
    entries = renewal.of(store).entries
    until(lambda: all(entry.delay > 0 for entry in entries()), "the first look")
    assert isinstance(store.acquire("video:1", token, LONG, owner_record()), Grant)
    until(lambda: not locks.is_locked("video:1"), "another look")


def test_abandoned_lease_is_looked_for_a_few_times_only() -> None:
    store = stores["default"]
    renewal.abandon("video:1", new_token(), LONG, store)
    until(lambda: not renewal.of(store).entries(), "the last look")
