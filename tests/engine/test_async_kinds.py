"""The other kinds of lock, on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.conf import settings

from django_tasklock import Lease, LockNotAcquired, lock, locks
from django_tasklock.stores.base import BaseStore
from tests.engine.test_async import run, until_async
from tests.steps import LONG
from tests.waiting import PATIENCE, until

POOL = "pool"


class TestPermits:
    def test_never_more_than_n_at_once_and_all_get_one(self, store: BaseStore) -> None:
        if settings.CACHES["default"]["BACKEND"].endswith("FileBasedCache"):
            pytest.skip("its add is not atomic")
        inside: set[int] = set()
        done: list[int | None] = []

        async def one(number: int) -> None:
            async with lock(POOL, ttl=LONG, wait=None, slots=3) as lease:
                inside.add(number)
                assert len(inside) <= 3
                await asyncio.sleep(0.02)
                inside.remove(number)
                done.append(lease.slot)

        async def work() -> None:
            await asyncio.gather(*map(one, range(9)))

        run(work())
        assert len(done) == 9
        assert set(done) <= {1, 2, 3}
        assert not locks.is_locked(f"{POOL}#1")

    def test_a_wait_ends_with_none(self, use_redis: object) -> None:
        async def work() -> Lease | None:
            first = await locks.aacquire(POOL, slots=2)
            second = await locks.aacquire(POOL, slots=2)
            assert first is not None
            assert second is not None
            found = await locks.aacquire(POOL, slots=2, wait=0.2)
            assert await locks.awaiters(POOL) == []
            await second.arelease()
            await first.arelease()
            return found

        assert run(work()) is None

    def test_if_the_first_waiter_is_cancelled_the_next_gets_the_permit(
        self, store: BaseStore
    ) -> None:
        async def work() -> None:
            held = [await locks.aacquire(POOL, ttl=LONG, slots=2) for _ in range(2)]
            first = asyncio.create_task(locks.aacquire(POOL, ttl=LONG, slots=2, wait=None))

            async def waits() -> bool:
                return bool(await locks.awaiters(POOL))

            await until_async(waits, "the first waiter")
            second = asyncio.create_task(locks.aacquire(POOL, ttl=LONG, slots=2, wait=None))
            await asyncio.sleep(0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            for lease in held:
                assert lease is not None
                assert await lease.arelease()
            got = await asyncio.wait_for(second, PATIENCE)
            assert got is not None
            assert await got.arelease()

        run(work())
        until(lambda: not locks.is_locked(f"{POOL}#1") and not locks.is_locked(f"{POOL}#2"))
        until(lambda: locks.waiters(POOL) == [], "nobody waits")


class TestCooling:
    def test_a_block_and_a_lease_leave_the_lock_cooling(self, tasklock: object) -> None:
        async def work() -> None:
            async with lock("block", cooldown=LONG):
                pass
            with pytest.raises(LockNotAcquired, match="cooling"):
                async with lock("block"):
                    raise AssertionError
            lease = await locks.aacquire("lease", hold_at_least=LONG)
            assert lease is not None
            assert await lease.arelease()
            assert await locks.aacquire("lease") is None

        run(work())

    @pytest.mark.parametrize("names", ["block", ["block", "other"]])
    @pytest.mark.parametrize("option", ["hold_at_least", "cooldown_after_error"])
    @pytest.mark.parametrize("by_hand", [False, True])
    def test_a_block_that_is_cancelled_before_it_begins_leaves_the_lock_free(
        self, tasklock: object, names: Any, option: str, by_hand: bool
    ) -> None:
        began, options = [], dict[str, Any]({option: LONG})

        async def block() -> None:
            context = lock(names, **options)
            if by_hand:
                await context.__aenter__()
            else:
                async with context:
                    began.append(True)

        async def work() -> None:
            task = asyncio.create_task(block())
            await asyncio.sleep(0)
            # The loop stands still until the lock is taken in its thread.
            until(lambda: locks.is_locked("block"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(work())
        assert began == []
        until(lambda: not locks.is_locked("block"), "what was granted is released", within=10)

    def test_a_cancelled_inner_block_leaves_the_outer_one_its_cooldown(
        self, tasklock: object
    ) -> None:
        async def work() -> None:
            async with lock("block", reentrant=True, cooldown=LONG):
                inner = lock("block", reentrant=True, cooldown=0, hold_at_least=1)
                entering = inner.__aenter__()
                entering.send(None)
                entering.close()
                await asyncio.sleep(0.1)

        run(work())
        with pytest.raises(LockNotAcquired, match="cooling"), lock("block"):
            raise AssertionError

    def test_a_coroutine_that_fails_has_a_cooldown_of_its_own(self, tasklock: object) -> None:
        @lock("report", cooldown=LONG, cooldown_after_error=0)
        async def report(*, fails: bool) -> None:
            if fails:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run(report(fails=True))
        run(report(fails=False))
        with pytest.raises(LockNotAcquired, match="cooling"):
            run(report(fails=False))
