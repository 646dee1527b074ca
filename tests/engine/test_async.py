"""``async with lock(...)``, ``@lock(...)`` on ``async def``, and the verbs to await.

However a task on an event loop ends, its locks are free and the queues are empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, TypeVar

import pytest
from django.db import connections

from django_tasklock import LeaseLost, LockNotAcquired, StoreUnavailable, lock, locks, signals
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent, run_python
from tests.conftest import UseCaches, UseRedis
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, in_child, taken
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until

T = TypeVar("T")

NAME = "video:1"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it on an event loop of its own, and not for ever."""
    return asyncio.run(asyncio.wait_for(work, 3 * PATIENCE))


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine function."""
    return wraps(test)(lambda *args, **kwargs: run(test(*args, **kwargs)))


async def queued(count: int, name: str = NAME) -> None:
    """Return when so many wait for the lock; `run` sees to it that this ends."""
    while len(await locks.awaiters(name)) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def entered(block: Any) -> Any:
    """What a block that does nothing gets."""
    async with block as lease:
        return lease


@on_a_loop
async def test_a_block_holds_the_lock(store: BaseStore) -> None:
    # Given a task of an event loop, in a block
    async with lock(NAME, ttl=LONG) as lease:
        # I expect it to hold the lock, and everybody else to be refused
        info = await locks.aget(NAME)
        assert info is not None
        assert info.token == lease.token
        with pytest.raises(LockNotAcquired):
            await entered(lock(NAME))
        assert await lease.aextend(LONG)
    # And the end of the block to release it
    assert not await locks.ais_locked(NAME)
    assert not lease.held


@on_a_loop
async def test_questions_without_an_answer_delay_no_release(
    tasklock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, answer = await locks.aacquire(NAME), threading.Event()
    assert lease is not None
    monkeypatch.setattr(locks.store, "find", lambda _: answer.wait(PATIENCE) and None)
    asking = [asyncio.create_task(locks.aget("another")) for _ in range(6)]
    await asyncio.sleep(0)
    assert await lease.arelease()
    assert not any(task.done() for task in asking)
    answer.set()
    await asyncio.gather(*asking)


@pytest.mark.parametrize("each", [10, pytest.param(100, marks=pytest.mark.nightly)])
@on_a_loop
async def test_many_tasks_wait_for_ten_locks_without_threads(on_redis: None, each: int) -> None:
    names, inside = [f"video:{number}" for number in range(10)], set[str]()
    before = threading.active_count()

    async def one(name: str) -> None:
        async with lock(name, ttl=LONG, wait=None):
            assert name not in inside
            inside.add(name)
            await asyncio.sleep(0)
            inside.remove(name)

    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(lock(name, ttl=10 * LONG))
        tasks = [asyncio.create_task(one(name)) for name in names * each]
        for name in names:
            await queued(each, name)
        assert threading.active_count() - before <= 9, "6 call the store, 3 listen, renew and note"
    await asyncio.gather(*tasks)
    assert await locks.acount() == 0


@on_a_loop
async def test_no_call_to_the_store_is_made_in_the_loops_thread(
    tasklock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(verb: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        threads[verb] = threading.get_ident()
        return call(*args, **kwargs)

    threads, verbs = dict[str, int](), {"acquire", "extend", "waiter", "get", "list", "clear"}
    for verb in verbs | {"release"}:
        monkeypatch.setattr(locks.store, verb, partial(watched, verb, getattr(locks.store, verb)))
    async with lock(NAME, ttl=LONG) as lease:
        await lease.aextend()
        await locks.aacquire(NAME, wait=0.01)
        await locks.aget(NAME)
        await locks.alist()
        await locks.aclear("another")
    assert set(threads) == verbs | {"release"}
    assert threading.get_ident() not in threads.values()


@pytest.mark.usefixtures("on_redis")
class TestVerbs:
    @on_a_loop
    async def test_they_do_what_those_without_the_a_do(self) -> None:
        lease = await locks.aacquire(NAME, ttl=LONG, wait=1, renew=False, hold_at_least=0)
        assert lease is not None
        assert [info.name for info in await locks.alist("video:")] == [NAME]
        assert await locks.alist("video:", limit=0) == []
        assert await locks.acount("video:") == 1
        assert await locks.aacquire(NAME) is None
        assert [event.kind for event in await locks.ahistory(NAME)] == ["refused"]
        assert not await locks.aclear(NAME, "another-token-0123456789"[:22])
        assert await locks.aclear(NAME)
        assert not await lease.arelease()
        leases = await locks.aacquire_all(["seat:2", "seat:1"], ttl=LONG)
        assert leases is not None
        assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
        assert await locks.aacquire_all(["seat:3", "seat:1"]) is None
        assert await locks.acount("seat:") == 2

    def test_a_thread_releases_what_a_task_took_and_the_owner_names_the_task(self) -> None:
        async def work() -> Any:
            return await asyncio.create_task(locks.aacquire(NAME), name="nightly")

        lease = run(work())
        assert "nightly" in lease.owner.thread
        assert Meanwhile(lease.release).result()
        assert run(taken(NAME).arelease())

    @pytest.mark.parametrize("raised", [LeaseLost, KeyError])
    def test_a_lost_lease_is_an_error_unless_the_block_has_its_own(self, raised: Any) -> None:
        async def work() -> None:
            async with lock(NAME, ttl=LONG):
                await locks.aclear(NAME)
                if raised is not LeaseLost:
                    raise raised

        with pytest.raises(raised):
            run(work())

    def test_receivers_may_block_and_leave_nothing_open(self, transactional_db: None) -> None:
        tenant, seen, told = ContextVar("tenant", default="nobody"), list[Any](), list[int]()

        def acquired(**_: Any) -> None:
            connections["default"].ensure_connection()
            seen.extend([connections["default"], tenant.get()])

        async def work() -> None:
            tenant.set("acme")
            await entered(lock(NAME))
            lease = await locks.aacquire(NAME, ttl=0.05)
            until(lambda: lease is not None and not lease.held)

        signals.lock_acquired.connect(acquired)
        lost = lambda **_: told.append(threading.get_ident())  # noqa: E731
        signals.lock_lost.connect(lost)
        run(work())
        until(lambda: told, "the loss")
        signals.lock_acquired.disconnect(acquired)
        signals.lock_lost.disconnect(lost)
        assert (seen[0].connection, seen[1]) == (None, "acme")
        assert told[0] != threading.get_ident(), "it is told in the thread of the loop"

    @on_a_loop
    async def test_other_kinds_in_an_exit_stack(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            leases = await stack.enter_async_context(lock(["seat:2", "seat:1"], ttl=LONG))
            assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
            with pytest.raises(LockNotAcquired) as refused:
                await entered(lock(["seat:0", "seat:1"]))
            assert refused.value.name == "seat:1"
            await stack.enter_async_context(lock(NAME, cooldown=LONG))
            permits = [await stack.enter_async_context(lock("pool", slots=2)) for _ in range(2)]
            assert [lease.slot for lease in permits] == [1, 2]
            with pytest.raises(LockNotAcquired):
                await entered(lock("pool", slots=2))
        assert [info.name for info in await locks.alist()] == [NAME]
        with pytest.raises(LockNotAcquired, match="cooling"):
            await entered(lock(NAME))

    def test_a_decorated_coroutine_has_the_lock_of_its_arguments(self) -> None:
        @lock("report:{date}", on_conflict="skip", cooldown=LONG, cooldown_after_error=0)
        async def report(date: str) -> bool:
            if date == "never":
                raise ZeroDivisionError
            return await locks.ais_locked("report:monday")

        assert inspect.iscoroutinefunction(report)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                run(report("never"))
        assert [run(report("monday")), run(report("monday"))] == [True, None]


# ------------------------------------------------------------------------------ ends


async def holds(began: asyncio.Event | None = None, **options: Any) -> None:
    """Hold the lock until it is cancelled."""
    async with lock(NAME, ttl=LONG, **options):
        if began is not None:
            began.set()
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
    async def test_what_is_cancelled_ends_after_its_release(self) -> None:
        began = asyncio.Event()
        task = asyncio.create_task(holds(began))
        await began.wait()
        await cancelled(task)
        assert not await locks.ais_locked(NAME)
        leases = [await locks.aacquire(f"{NAME}:{number}", ttl=LONG) for number in range(20)]
        releases = [asyncio.create_task(lease.arelease()) for lease in leases if lease]
        await asyncio.sleep(0)
        for release in releases:
            release.cancel()
        await asyncio.wait(releases)

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
        loop, began = asyncio.new_event_loop(), asyncio.Event()
        held = taken(NAME) if waits else None
        task: Any = loop.create_task(holds(began, wait=None))
        loop.run_until_complete(queued(1) if waits else began.wait())
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
