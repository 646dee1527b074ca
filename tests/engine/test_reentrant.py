"""``lock(..., reentrant=True)``: who holds the lock takes it again, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_tasklock import Lease, LeaseLost, LockNotAcquired, lock, locks
from django_tasklock._engine.lock import LockContext
from django_tasklock.stores.base import BaseStore
from tests.greenlets import LIBRARIES, run_in_greenlets
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, in_child
from tests.waiting import PATIENCE


def again(name: str = "video:1", **options: Any) -> LockContext[Lease]:
    block: LockContext[Lease] = lock(name, **{"ttl": LONG, "reentrant": True, **options})
    return block


def refused(name: str = "video:1") -> bool:
    """Whether whoever calls this cannot take the lock again."""
    try:
        with again(name):
            return False
    except LockNotAcquired:
        return True


def test_every_store(each_store: BaseStore) -> None:
    with again() as outer:
        with again() as inner:
            assert inner is outer
        assert outer.held
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == outer.token
    assert not locks.is_locked("video:1")
    assert not outer.held


@pytest.mark.usefixtures("on_redis")
class TestBlocks:
    def test_inner_block_asks_the_store_nothing(self, redis_server: RedisServer) -> None:
        with again(renew=False) as outer:
            traffic = Traffic(redis_server)
            for _ in range(10):
                with again(ttl=5, renew=True, wait=None) as inner:
                    assert (inner is outer, inner.ttl, inner.renew) == (True, LONG, False)
            assert traffic.scripts() == 0

    def test_one_object_nests_as_well(self) -> None:
        shared = again()
        with shared as first, shared as second, shared as third:
            assert first is second is third
        assert not locks.is_locked("video:1")
        with shared as fresh:
            assert fresh.token != first.token

    def test_both_sides_have_to_say_it(self) -> None:
        with again() as lease:
            with pytest.raises(LockNotAcquired), lock("video:1"):
                pytest.fail("the block ran")  # pragma: no cover
            assert locks.acquire("video:1") is None
            assert lease.held
        with lock("video:1"):
            assert refused()
        with pytest.raises(TypeError, match="reentrant is a bool"):
            lock("video:1", reentrant=1)  # type: ignore[call-overload]

    def test_inner_block_that_outlives_the_outer_one_loses_the_lock(self) -> None:
        def block() -> Iterator[Lease]:
            with again() as lease:
                yield lease

        first, second = block(), block()
        assert next(first) is next(second)
        assert next(first, "over") == "over"
        assert not locks.is_locked("video:1")
        with pytest.raises(LeaseLost, match="has ended"):
            next(second, "over")


@pytest.mark.usefixtures("on_redis")
class TestLoss:
    def test_inner_and_outer_block_both_say_it(self) -> None:
        def work() -> None:
            with again() as lease:
                with pytest.raises(LeaseLost), again():
                    lost.append(locks.clear("video:1") and not lease.extend())
                with pytest.raises(LeaseLost, match="the store no longer has it"), again():
                    pytest.fail("the block ran")  # pragma: no cover

        lost: list[bool] = []
        with pytest.raises(LeaseLost):
            work()
        assert lost == [True]
        with again():  # What was lost has ended.
            assert locks.is_locked("video:1")

    def test_lease_that_was_released_inside_is_taken_anew(self) -> None:
        with again() as first, again() as second:
            assert first.release() is True
            with again() as third:
                assert third.token != second.token
            assert not locks.is_locked("video:1")

    def test_child_of_a_fork_owns_nothing(self) -> None:
        def child() -> list[bool]:
            said = [refused(), lease.held]
            with again("video:2"), again("video:2") as inner:
                said.append(inner.held)
            with contextlib.suppress(LeaseLost):
                shared.__exit__(None, None, None)
            return said

        shared = again()
        with shared as lease:
            assert in_child(child) == [True, False, True]
            assert not locks.is_locked("video:2")
            assert holder("video:1").token == lease.token


@pytest.mark.usefixtures("on_redis")
class TestOthers:
    """Whatever runs beside the holder does not share its lease."""

    def test_thread_also_with_the_context_of_its_caller(self) -> None:
        with again(), ThreadPoolExecutor(1) as pool:
            assert Meanwhile(refused).result()
            context = contextvars.copy_context()
            assert pool.submit(context.run, refused).result(PATIENCE)

    def test_async_tasks_and_what_they_start(self) -> None:
        async def nested() -> bool:
            return refused()

        async def work() -> list[bool]:
            with again():
                return [
                    await nested(),
                    await asyncio.create_task(nested()),
                    *await asyncio.gather(nested(), nested()),
                    await asyncio.to_thread(refused),
                    await sync_to_async(refused)(),
                ]

        assert asyncio.run(work()) == [False, *[True] * 5]
        with again():
            assert asyncio.run(nested()), "a thread does not share with the loop that it runs"
            assert async_to_sync(nested)()


GREENLETS = """
from django_tasklock import LockNotAcquired, lock, locks

def again(name="video:1", wait=0):
    return lock(name, ttl=60, reentrant=True, wait=wait)

def refused():
    try:
        with again(), again():
            return False
    except LockNotAcquired:
        return True

with again():
    assert not refused()
    assert join(spawn(refused)), "shared with another"
assert not join(spawn(refused))

inside = []
def turns(name):
    with again(["b", "a"], None), again(["a", "c"], None):
        inside.append(name)
        with again("a"):
            sleep(0.01)
        assert inside == [name], inside
        inside.clear()

for started in [spawn(turns, name) for name in "abcdefghijklmnop"]:
    join(started)
print(locks.count())
"""


@pytest.mark.usefixtures("on_redis")
@pytest.mark.parametrize("library", LIBRARIES)
def test_greenlets_do_not_share(library: str) -> None:
    assert run_in_greenlets(GREENLETS, library) == ["0"]
