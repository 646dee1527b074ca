"""However a task on an event loop ends, its locks are free and the queues are empty."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, lock, locks
from tests.agent import Agent, run_python
from tests.conftest import UseCaches, UseRedis
from tests.engine.test_async import NAME, entered, on_a_loop, queued, run
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, in_child, taken
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until


async def holds(entered: asyncio.Event | None = None, **options: Any) -> None:
    """Hold the lock until it is cancelled."""
    async with lock(NAME, ttl=LONG, **options):
        if entered is not None:
            entered.set()
        await asyncio.sleep(LONG)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestEnds:
    @pytest.fixture(autouse=True)
    def nothing_is_left(self, on_redis: None) -> Iterator[None]:
        yield
        # A thread may still refer to what it has done for a task whose loop is gone.
        until(lambda: gc.collect() >= 0 and not locks.count(), "free locks", LONG / 3)
        assert locks.waiters(NAME) == []
        assert run(entered(lock(NAME, wait=PATIENCE)))

    @on_a_loop
    async def test_a_cancelled_block_ends_after_its_release(self) -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(holds(entered))
        await entered.wait()
        await cancelled(task)
        assert not await locks.ais_locked(NAME)

    @on_a_loop
    async def test_cancelled_releases_are_made(self) -> None:
        leases = [await locks.aacquire(f"{NAME}:{number}", ttl=LONG) for number in range(20)]
        tasks = [asyncio.create_task(lease.arelease()) for lease in leases if lease]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    @pytest.mark.parametrize("when", ["it asks", "it waits", "it is handed over"])
    @on_a_loop
    async def test_cancelled_at_any_moment_while(self, when: str) -> None:
        for turns in range(0, 200, 5):
            held = await locks.aacquire(NAME, ttl=LONG, wait=PATIENCE)
            assert held is not None
            if when == "it asks":
                await held.arelease()
            task = asyncio.create_task(holds(wait=None))
            if when == "it is handed over":
                await queued(1)
                asyncio.get_running_loop().call_soon(asyncio.create_task, held.arelease())
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancelled(task)
            await held.arelease()

    @on_a_loop
    async def test_cancelled_before_the_block_begins_it_leaves_no_cooldown(self) -> None:
        task = asyncio.create_task(holds(hold_at_least=LONG, cooldown_after_error=LONG))
        await asyncio.sleep(0)
        # The loop stands still until the lock is taken in another thread.
        until(lambda: locks.is_locked(NAME))
        await cancelled(task)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("waits", [False, True], ids=["holding", "waiting"])
    def test_the_loop_is_closed_in_the_middle(self, waits: bool) -> None:
        loop, entered = asyncio.new_event_loop(), asyncio.Event()
        held = taken(NAME) if waits else None
        task: Any = loop.create_task(holds(entered, wait=None))
        loop.run_until_complete(queued(1) if waits else entered.wait())
        loop.close()
        if held is not None:
            # What is handed over to the waiter now is passed on.
            assert held.release()
            until(lambda: not locks.is_locked(NAME), "a free lock", LONG / 3)
        task._log_destroy_pending = False

    @on_a_loop
    async def test_the_holders_process_is_killed_while_a_task_waits(self) -> None:
        with Agent() as agent:
            agent.ask("acquire", name=NAME, ttl=LONG)
            task = asyncio.create_task(entered(lock(NAME, wait=None)))
            await queued(1)
            agent.kill()
            await asyncio.wait_for(task, LONG / 3)

    @pytest.mark.usefixtures("each_fork")
    def test_a_forked_child_has_threads_of_its_own(self) -> None:
        run(entered(lock(NAME)))
        assert in_child(lambda: bool(run(entered(lock(NAME)))))

    def test_a_process_ends_after_its_releases(self) -> None:
        run_python(
            "import asyncio; from django_tasklock import locks\n"
            "async def main():\n"
            "    lease = await locks.aacquire('video:1', ttl=60)\n"
            "    asyncio.create_task(lease.arelease())\n"
            "    await asyncio.sleep(0)\n"
            "asyncio.run(main())\n"
        )
        assert not locks.is_locked(NAME)


@on_a_loop
async def test_a_silent_store_delays_no_other(
    own_redis_server: RedisServer, use_caches: UseCaches, redis_server: RedisServer
) -> None:
    silent = redis_cache(own_redis_server.url, SOCKET_TIMEOUT=3.0)
    caches = {"default": redis_cache(redis_server.url), "silent": silent}
    use_caches(caches, {"default": {}, "silent": {"CACHE": "silent"}})
    service = locks.using("silent")
    leases = [await service.aacquire(f"pay:{number}") for number in range(6)]
    own_redis_server.pause()
    tasks: list[Any] = [asyncio.create_task(lease.arelease()) for lease in leases if lease]
    tasks += [asyncio.create_task(service.aget(NAME)) for _ in range(6)]
    await entered(lock(NAME))
    assert not await locks.ais_locked(NAME)
    assert not any(task.done() for task in tasks)
    own_redis_server.resume()
    await asyncio.gather(*tasks)


@on_a_loop
async def test_all_are_told_of_an_outage(cut_proxy: CutProxy, use_redis: UseRedis) -> None:
    use_redis(cut_proxy.url)
    block = lock(NAME, ttl=LONG)
    await block.__aenter__()
    tasks = [asyncio.create_task(entered(lock(NAME, wait=None))) for _ in range(5)]
    await queued(5)
    cut_proxy.refuse()
    cut_proxy.cut()
    for verb in (*tasks, locks.aget(NAME), locks.aclear(NAME), block.__aexit__(None, None, None)):
        with pytest.raises(StoreUnavailable):
            await verb
    cut_proxy.accept()
    until(lambda: not locks.is_locked(NAME), "the lock to be free")
