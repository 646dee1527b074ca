"""``lock(..., reentrant=True)``: who holds the lock takes it again, and nobody else does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_tasklock import Lease, LeaseLost, LockNotAcquired, lock, locks
from django_tasklock.stores.base import BaseStore
from tests.interruptions import Interrupt, signalled
from tests.servers import RedisServer
from tests.steps import LONG, Traffic, holder, in_child, taken
from tests.waiting import PATIENCE, until


def again(name: Any = "video:1", **options: Any) -> Any:
    return lock(name, **{"ttl": LONG, "reentrant": True, **options})


def refused() -> bool:
    """Whether whoever calls this cannot take the lock again."""
    try:
        with again():
            return False
    except LockNotAcquired:
        return True


def test_every_store(each_store: BaseStore) -> None:
    # Given a block that holds a lock, and blocks in it that want it again
    one = again()
    with one as outer:
        with one as inner, again() as third:
            # I expect them to share its lease, and everybody else to be refused
            assert inner is outer is third
        assert outer.held
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == outer.token
    # And the outer one alone to release it
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

    def test_both_sides_have_to_say_it(self) -> None:
        with again(), pytest.raises(LockNotAcquired):
            lock("video:1").__enter__()
        with lock("video:1"):
            assert refused()
        with pytest.raises(TypeError, match="reentrant must be a bool"):
            lock("video:1", reentrant=1)  # type: ignore[call-overload]

    def test_a_lease_that_has_ended_is_not_shared(self) -> None:
        def block() -> Iterator[Lease]:
            with again() as lease:
                yield lease

        first, second = block(), block()
        assert next(first) is next(second)
        assert next(first, "over") == "over"
        assert not locks.is_locked("video:1")
        with pytest.raises(LeaseLost, match="has ended"):
            next(second, "over")
        with again() as outer, again() as inner:
            assert inner.release() is True
            with again() as anew:
                assert anew.token != outer.token

    def test_of_a_loss_inner_and_outer_block_both_say_it(self) -> None:
        def work() -> None:
            with again() as lease:
                with pytest.raises(LeaseLost), again():
                    assert (locks.clear("video:1"), lease.extend()) == (True, False)
                with pytest.raises(LeaseLost, match="the store no longer has it"):
                    again().__enter__()

        with pytest.raises(LeaseLost):
            work()
        with again():  # What was lost has ended.
            assert locks.is_locked("video:1")

    def test_what_was_interrupted_before_it_had_its_locks_is_no_block_around_others(self) -> None:
        other = taken("video:2", renew=True)
        try:
            with signalled(Interrupt()), again(name=["video:1", "video:2"], wait=LONG):
                raise AssertionError
        except Interrupt:  # Which refers to that block.
            until(lambda: not locks.is_locked("video:1"))
            with again() as lease:
                assert lease.held
        assert other.release()

    @pytest.mark.usefixtures("each_fork")
    def test_whatever_runs_beside_the_holder_does_not_share_its_lease(self) -> None:
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
        with again(), ThreadPoolExecutor(1) as pool:
            assert asyncio.run(nested()), "a thread does not share with the loop that it runs"
            assert async_to_sync(nested)()
            assert pool.submit(contextvars.copy_context().run, refused).result(PATIENCE)
            assert in_child(refused)
            assert locks.is_locked("video:1")
