"""A `lock()` object that is used by many: each use leaves with the lease that it came with."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, lock, locks
from django_tasklock._engine.context import LockContext
from django_tasklock._engine.renewal import renewal
from django_tasklock._engine.store_renewal import Entry
from tests.conftest import UseRedis
from tests.steps import LONG, Meanwhile, holder
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def shared() -> LockContext[Lease]:
    return lock("video:1", ttl=LONG)


def block(shared: LockContext[Lease]) -> Iterator[Lease]:
    """A block that is left when the generator is closed."""
    with shared as lease:
        yield lease


def renewed() -> list[Lease]:
    """The leases that renewal will extend."""
    leases = [entry.lease() for entry in renewal.entries() if isinstance(entry, Entry)]
    return [lease for lease in leases if lease is not None and lease.renew and lease.held]


def overtaken(shared: LockContext[Lease]) -> tuple[Iterator[Lease], Iterator[Lease], Lease]:
    """Two open blocks of one lock: the first has lost its lease, the second holds the lock."""
    first, second = block(shared), block(shared)
    lost = next(first)
    assert locks.clear("video:1", lost.token)
    return first, second, next(second)


class TestBlocks:
    def test_blocks_of_one_thread_that_interleave(self, shared: LockContext[Lease]) -> None:
        first, second, lease = overtaken(shared)
        with pytest.raises(LeaseLost):
            next(first)
        assert lease.held
        assert holder("video:1").token == lease.token
        assert next(second, "over") == "over"
        assert not locks.is_locked("video:1")
        assert renewed() == []

    def test_blocks_of_one_thread_that_nest(self, shared: LockContext[Lease]) -> None:
        first, second, lease = overtaken(shared)
        assert next(second, "over") == "over"
        assert lease.held is False
        with pytest.raises(LeaseLost):
            next(first)
        assert renewed() == []

    def test_block_that_another_thread_closes(self, shared: LockContext[Lease]) -> None:
        first, second, lease = overtaken(shared)
        Meanwhile(first.close).result()  # type: ignore[attr-defined]
        assert lease.held
        Meanwhile(second.close).result()  # type: ignore[attr-defined]
        assert not locks.is_locked("video:1")
        assert renewed() == []

    def test_block_that_the_garbage_collector_closes_in_another_thread(
        self, shared: LockContext[Lease]
    ) -> None:
        class Cycle:
            pass

        def enter() -> None:
            cycle: Any = Cycle()
            cycle.own, cycle.block = cycle, block(shared)
            next(cycle.block)

        gc.disable()  # It may run at any allocation, in this thread.
        try:
            enter()
            assert locks.is_locked("video:1")
            Meanwhile(gc.collect).result()
        finally:
            gc.enable()
        assert not locks.is_locked("video:1")
        assert renewed() == []

    def test_block_of_a_thread_that_ended(self, shared: LockContext[Lease]) -> None:
        """Another thread may have its number by now."""
        opened = block(shared)
        lease = Meanwhile(lambda: next(opened)).result()
        other = lock("video:2")
        threads = [Meanwhile(lambda: next(block(other), None)) for _ in range(3)]
        for thread in threads:
            with contextlib.suppress(Exception):
                thread.result()
        assert lease.held
        assert next(opened, "over") == "over"
        assert not locks.is_locked("video:1")

    def test_shared_object_keeps_nothing_of_its_uses(self, shared: LockContext[Lease]) -> None:
        opened = block(shared)
        next(opened)
        before = len(gc.get_referrers(shared))
        opened.close()  # type: ignore[attr-defined]
        for _ in range(10):
            with shared:
                pass
        assert shared._by_hand._open == []
        assert len(gc.get_referrers(shared)) <= before

    def test_use_that_is_dropped_and_never_left_gives_its_lease_up(
        self, shared: LockContext[Lease]
    ) -> None:
        """As when an exception came in the moment of leaving."""
        leave = shared.__exit__
        lease = shared.__enter__()
        assert lease.held
        del leave
        until(lambda: not locks.is_locked("video:1"))
        with pytest.raises(LeaseLost):
            lease.assert_held()


class TestStacks:
    def test_stack_that_is_closed_in_another_thread(self, shared: LockContext[Lease]) -> None:
        with contextlib.ExitStack() as here:
            first = here.enter_context(shared)
            assert locks.clear("video:1", first.token)
            with contextlib.ExitStack() as elsewhere:
                lease = elsewhere.enter_context(shared)
                moved = elsewhere.pop_all()
            with pytest.raises(LeaseLost):
                here.close()
            assert lease.held
            Meanwhile(moved.close).result()
            assert not locks.is_locked("video:1")
        assert renewed() == []

    def test_lock_that_is_pushed_on_a_stack_after_it_was_entered(
        self, shared: LockContext[Lease]
    ) -> None:
        with contextlib.ExitStack() as stack:
            shared.__enter__()
            stack.push(shared)
        assert not locks.is_locked("video:1")

    def test_look_at_its_exit_changes_nothing(self, shared: LockContext[Lease]) -> None:
        assert isinstance(shared, contextlib.AbstractContextManager)
        leave, of_class = LockContext.__exit__, shared.__exit__
        with shared:
            pass
        assert not locks.is_locked("video:1")
        del of_class
        for _ in range(2):
            shared.__enter__()
            leave(shared, None, None, None)
            assert not locks.is_locked("video:1")


class TestByHand:
    def test_entered_here_and_left_in_another_thread(self, shared: LockContext[Lease]) -> None:
        shared.__enter__()
        Meanwhile(lambda: shared.__exit__(None, None, None)).result()
        assert not locks.is_locked("video:1")

    def test_each_thread_leaves_with_its_own(self, shared: LockContext[Lease]) -> None:
        first = shared.__enter__()
        assert locks.clear("video:1", first.token)
        entered, leave = threading.Event(), threading.Event()

        def other() -> bool:
            lease = shared.__enter__()
            entered.set()
            assert leave.wait(LONG)
            held = lease.held
            shared.__exit__(None, None, None)
            return held

        thread = Meanwhile(other)
        assert entered.wait(LONG)
        with pytest.raises(LeaseLost):
            shared.__exit__(None, None, None)
        leave.set()
        assert thread.result() is True
        assert not locks.is_locked("video:1")

    def test_what_cannot_be_told_is_said_and_nothing_is_released(
        self, shared: LockContext[Lease]
    ) -> None:
        lost = Meanwhile(shared.__enter__).result()
        assert locks.clear("video:1", lost.token)
        lease = Meanwhile(shared.__enter__).result()
        with pytest.raises(RuntimeError, match=r"Use one lock\(\) for each use"):
            shared.__exit__(None, None, None)
        assert lease.held
        assert holder("video:1").token == lease.token
        assert renewed() == []

    def test_left_twice(self, shared: LockContext[Lease]) -> None:
        shared.__enter__()
        shared.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="left already, or never entered"):
            shared.__exit__(None, None, None)
