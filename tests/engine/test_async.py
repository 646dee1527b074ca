"""``async with lock(...)``, ``@lock(...)`` on ``async def``, and the verbs to await."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

import pytest
from django.conf import settings

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LeaseLost,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock._engine.aio.verbs import AcquireOptions
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.zookeeper import ZooKeeperStore
from tests.conftest import UseRedis
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, in_child, killed_in_child, sent, taken
from tests.waiting import PATIENCE, until

T = TypeVar("T")

NAME = "video:1"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it on an event loop of its own, and not for ever."""

    async def in_time() -> T:
        return await asyncio.wait_for(work, 3 * PATIENCE)

    return asyncio.run(in_time())


async def until_async(condition: Callable[[], Coroutine[Any, Any, Any]], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not happen"
        await asyncio.sleep(0.01)


async def queued(count: int) -> None:
    """Return when so many wait for the lock."""

    async def stand() -> bool:
        return len(await locks.awaiters(NAME)) == count

    await until_async(stand, f"{count} in the queue")


class TestOnEveryStore:
    def test_a_block_holds_the_lock(self, store: BaseStore) -> None:
        async def work() -> Lease:
            async with lock(NAME, ttl=LONG) as lease:
                assert lease.held
                assert await locks.ais_locked(NAME)
                info = await locks.aget(NAME)
                assert info is not None
                assert info.token == lease.token
                with pytest.raises(LockNotAcquired):
                    async with lock(NAME):
                        pass
                assert await lease.aextend(LONG)
            assert not await locks.ais_locked(NAME)
            return lease

        assert not run(work()).held

    def test_one_waits_for_another(self, each_store: BaseStore) -> None:
        order: list[str] = []

        async def first(entered: asyncio.Event) -> None:
            async with lock(NAME, ttl=LONG):
                entered.set()
                await asyncio.sleep(0.1)
                order.append("first")

        async def work() -> None:
            entered = asyncio.Event()
            task = asyncio.create_task(first(entered))
            await entered.wait()
            async with lock(NAME, ttl=LONG, wait=PATIENCE):
                order.append("second")
            await task

        run(work())
        assert order == ["first", "second"]
        assert not locks.is_locked(NAME)

    def test_many_take_turns(self, store: BaseStore) -> None:
        if settings.CACHES["default"]["BACKEND"].endswith("FileBasedCache"):
            pytest.skip("its add is not atomic")
        inside: list[int] = []
        done: list[int] = []

        async def one(number: int) -> None:
            async with lock(NAME, ttl=LONG, wait=None):
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                inside.clear()
                done.append(number)

        async def work() -> None:
            await asyncio.gather(*map(one, range(12)))

        run(work())
        assert sorted(done) == list(range(12))
        assert not locks.is_locked(NAME)

    def test_a_wait_ends_with_none(self, store: BaseStore) -> None:
        held = taken(NAME)

        async def work() -> Lease | None:
            return await locks.aacquire(NAME, wait=0.2)

        assert run(work()) is None
        assert held.held
        assert held.release()
        assert not locks.is_locked(NAME)

    def test_a_cancelled_waiter_is_gone(self, store: BaseStore) -> None:
        held = taken(NAME)

        async def work() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(locks.aacquire(NAME, wait=None), 0.3)
            if isinstance(store, ZooKeeperStore):
                await queued(0)  # Its waiters leave in the background.
            assert await locks.awaiters(NAME) == []
            assert await held.arelease()

        run(work())
        until(lambda: not locks.is_locked(NAME), "the lock to be free")

    def test_threads_and_tasks_wait_for_each_other(self, store: BaseStore) -> None:
        def in_a_thread() -> None:
            with lock(NAME, ttl=LONG, wait=PATIENCE):
                pass

        async def work() -> None:
            async with lock(NAME, ttl=LONG):
                thread = Meanwhile(in_a_thread)
                await asyncio.sleep(0.05)
            async with lock(NAME, ttl=LONG, wait=PATIENCE):
                pass
            await asyncio.to_thread(thread.result)

        run(work())
        assert not locks.is_locked(NAME)


@pytest.fixture
def redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.mark.usefixtures("redis")
class TestVerbs:
    def test_they_do_what_those_without_the_a_do(self) -> None:
        async def work() -> None:
            lease = await locks.aacquire(NAME, ttl=LONG)
            assert lease is not None
            assert [info.name for info in await locks.alist("video:")] == [NAME]
            assert await locks.alist("video:", limit=0) == []
            assert await locks.acount("video:") == 1
            assert await locks.acount("other:") == 0
            assert not await locks.aclear(NAME, "another-token-0123456789"[:22])
            assert await locks.aclear(NAME)
            assert not await lease.arelease()
            with pytest.raises(LeaseLost):
                lease.assert_held()
            assert await locks.aget(NAME) is None

        run(work())

    def test_several_are_taken_all_or_none(self) -> None:
        async def work() -> None:
            leases = await locks.aacquire_all(["seat:2", "seat:1"], ttl=LONG)
            assert leases is not None
            assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
            assert await locks.aacquire_all(["seat:3", "seat:1"]) is None
            assert not await locks.ais_locked("seat:3")
            for lease in leases:
                assert await lease.arelease()

        run(work())

    def test_aacquire_has_the_options_of_acquire(self) -> None:
        parameters = inspect.signature(locks.acquire).parameters.values()
        options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        assert list(AcquireOptions.__annotations__) == options

    @pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": "1"}, {"wait": -1}, {"renew": 1}])
    def test_a_wrong_argument_is_an_error(self, wrong: dict[str, Any]) -> None:
        with pytest.raises((TypeError, ValueError)):
            run(locks.aacquire(NAME, **wrong))

    def test_an_unknown_option_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="tll"):
            run(locks.aacquire(NAME, tll=3))  # type: ignore[call-arg]

    def test_an_unknown_alias_is_an_error(self) -> None:
        async def work() -> None:
            async with lock(NAME, store="nowhere"):
                pass

        with pytest.raises(InvalidLockConfig):
            run(work())

    def test_a_thread_releases_what_a_task_took(self) -> None:
        lease = run(locks.aacquire(NAME, ttl=LONG))
        assert lease is not None
        assert Meanwhile(lease.release).result()
        assert run(taken(NAME).arelease())
        assert not locks.is_locked(NAME)

    def test_the_owner_names_the_task(self) -> None:
        async def work() -> str | None:
            async with lock(NAME) as lease:
                return lease.owner.thread

        async def named() -> str | None:
            return await asyncio.create_task(work(), name="nightly")

        assert run(named()) == f"{threading.current_thread().name} nightly"


@pytest.mark.usefixtures("redis")
class TestBlocks:
    def test_a_lost_lease_is_reported_at_the_end(self) -> None:
        async def work() -> None:
            async with lock(NAME, ttl=LONG):
                await locks.aclear(NAME)

        with pytest.raises(LeaseLost):
            run(work())

    def test_a_loss_is_told_off_the_loop(self) -> None:
        """A receiver may block, as one that asks a database does."""
        told: list[int] = []
        receiver = lambda **_: told.append(threading.get_ident())  # noqa: E731
        signals.lock_lost.connect(receiver)

        async def lose() -> Lease:
            lease = await locks.aacquire(NAME, ttl=0.05)
            assert lease is not None

            async def is_over() -> bool:
                return not lease.held

            await until_async(is_over, "its end")
            return lease

        try:
            assert not run(lose()).held
            until(lambda: told)
        finally:
            signals.lock_lost.disconnect(receiver)
        (thread,) = told
        assert thread != threading.get_ident()

    def test_the_error_of_the_block_is_the_one_that_is_raised(self) -> None:
        async def work() -> None:
            async with lock(NAME, ttl=LONG):
                await locks.aclear(NAME)
                raise KeyError(NAME)

        with pytest.raises(KeyError):
            run(work())

    def test_one_object_serves_many_tasks(self) -> None:
        shared = lock(NAME, ttl=LONG, wait=None)
        done: list[int] = []

        async def one(number: int) -> None:
            async with shared as lease:
                assert lease.held
                await asyncio.sleep(0)
                assert lease.held
                done.append(number)

        async def work() -> None:
            await asyncio.gather(*map(one, range(10)))

        run(work())
        assert sorted(done) == list(range(10))

    def test_one_object_serves_several_loops_and_threads(self) -> None:
        shared = lock(NAME, ttl=LONG, wait=PATIENCE)

        async def work() -> bool:
            async with shared as lease:
                return lease.held

        for thread in [Meanwhile(lambda: run(work())) for _ in range(5)]:
            assert thread.result()
        with shared:
            pass
        assert run(work())

    def test_an_exit_stack(self) -> None:
        async def work() -> None:
            async with contextlib.AsyncExitStack() as stack:
                first = await stack.enter_async_context(lock("a", ttl=LONG))
                second = await stack.enter_async_context(lock("b", ttl=LONG))
                assert first.held
                assert second.held
            assert await locks.acount() == 0

        run(work())

    def test_exit_stacks_that_share_an_object_end_their_own_leases(self) -> None:
        async def work() -> None:
            shared = lock(NAME, ttl=LONG)
            here, there = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
            first = await here.enter_async_context(shared)
            assert await locks.aclear(NAME, first.token)
            second = await there.enter_async_context(shared)
            with pytest.raises(LeaseLost):
                await here.aclose()
            assert second.held
            await asyncio.create_task(there.aclose())
            assert not await locks.ais_locked(NAME)

        run(work())

    def test_by_hand(self) -> None:
        async def work() -> None:
            block = lock(NAME, ttl=LONG)
            lease = await block.__aenter__()
            assert await locks.ais_locked(NAME)
            await block.__aexit__(None, None, None)
            assert not lease.held
            with pytest.raises(RuntimeError):
                await block.__aexit__(None, None, None)

        run(work())
        assert not locks.is_locked(NAME)

    def test_several_names(self) -> None:
        async def work() -> None:
            async with lock(["seat:2", "seat:1"], ttl=LONG) as leases:
                assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
                with pytest.raises(LockNotAcquired) as refused:
                    async with lock(["seat:0", "seat:1"]):
                        pass
                assert refused.value.name == "seat:1"
                assert not await locks.ais_locked("seat:0")
            assert await locks.acount() == 0

        run(work())

    def test_skip_is_for_the_decorator(self) -> None:
        async def work() -> None:
            async with lock(NAME, on_conflict="skip"):  # type: ignore[attr-defined]
                pass

        with pytest.raises(TypeError, match="decorator"):
            run(work())


@pytest.mark.usefixtures("redis")
class TestReentrant:
    def test_a_task_takes_it_again(self) -> None:
        shared = lock(NAME, ttl=LONG, reentrant=True)

        async def work() -> None:
            async with shared as outer:
                async with lock(NAME, reentrant=True) as inner:
                    assert inner is outer
                with shared as inner:
                    assert inner is outer
                assert outer.held
            assert not outer.held

        run(work())
        assert not locks.is_locked(NAME)

    def test_another_task_is_another(self) -> None:
        async def other() -> None:
            async with lock(NAME, reentrant=True):
                pass

        async def work() -> None:
            async with lock(NAME, ttl=LONG, reentrant=True):
                with pytest.raises(LockNotAcquired):
                    await asyncio.create_task(other())
                async with lock(NAME, reentrant=True):
                    pass

        run(work())
        assert not locks.is_locked(NAME)

    def test_several_names_again(self) -> None:
        async def work() -> None:
            async with lock(["a", "b"], ttl=LONG, reentrant=True) as outer:
                async with lock(["b", "a"], reentrant=True) as inner:
                    assert inner == outer[::-1]
                assert all(lease.held for lease in outer)

        run(work())
        assert locks.count() == 0


@pytest.mark.usefixtures("redis")
class TestDecorator:
    def test_each_call_has_the_lock_of_its_arguments(self) -> None:
        @lock("report:{date}", ttl=LONG)
        async def report(date: str, held: str) -> bool:
            return await locks.ais_locked(held)

        assert inspect.iscoroutinefunction(report)
        assert run(report("monday", "report:monday"))
        assert not run(report("tuesday", "report:monday"))
        assert locks.count() == 0

    def test_a_refused_call_raises_or_is_skipped(self) -> None:
        called: list[str] = []

        @lock(NAME, on_conflict="skip")
        async def skipped() -> str:
            called.append("skipped")
            return "done"

        @lock(NAME)
        async def refused() -> None:
            called.append("refused")

        assert run(skipped()) == "done"
        called.clear()
        held = taken(NAME)
        assert run(skipped()) is None
        with pytest.raises(LockNotAcquired):
            run(refused())
        assert called == []
        assert held.held

    def test_what_it_raises_is_raised(self) -> None:
        @lock(NAME)
        async def fails() -> None:
            raise KeyError(NAME)

        with pytest.raises(KeyError):
            run(fails())
        assert not locks.is_locked(NAME)

    def test_an_object_whose_call_is_a_coroutine(self) -> None:
        class Report:
            async def __call__(self, day: int) -> bool:
                return await locks.ais_locked(f"{NAME}:{day}")

        for report in (Report(), functools.partial(Report(), day=7)):
            held = lock(f"{NAME}:{{day}}")(report)
            assert run(held(day=7))
            assert not locks.is_locked(f"{NAME}:7")

    def test_generators_are_refused(self) -> None:
        with pytest.raises(TypeError, match="generates"):

            @lock(NAME)
            async def generates() -> Any:
                yield 1


@pytest.mark.usefixtures("redis")
class TestEnds:
    """However a task ends, the lock is free and the queue is empty."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self) -> Iterator[None]:
        yield
        until(lambda: not locks.is_locked(NAME), "the lock to be free")
        assert locks.waiters(NAME) == []
        assert run(still_works())

    def test_the_block_is_cancelled(self) -> None:
        async def block(entered: asyncio.Event) -> None:
            async with lock(NAME, ttl=LONG):
                entered.set()
                await asyncio.sleep(LONG)

        async def work() -> None:
            entered = asyncio.Event()
            task = asyncio.create_task(block(entered))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await locks.ais_locked(NAME)

        run(work())

    def test_cancelled_twice_at_the_end_of_the_block(self) -> None:
        async def block(entered: asyncio.Event) -> None:
            async with lock(NAME, ttl=LONG):
                entered.set()
                await asyncio.sleep(LONG)

        async def work() -> None:
            entered = asyncio.Event()
            task = asyncio.create_task(block(entered))
            await entered.wait()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(work())

    def test_cancelled_while_the_lock_is_handed_over(self) -> None:
        async def waits() -> None:
            async with lock(NAME, ttl=LONG, wait=None):
                await asyncio.sleep(LONG)

        async def work() -> None:
            for _ in range(20):
                held = await locks.aacquire(NAME, ttl=LONG, wait=PATIENCE)
                assert held is not None
                task = asyncio.create_task(waits())
                await queued(1)
                release = asyncio.create_task(held.arelease())
                await asyncio.sleep(0)
                task.cancel()
                assert await release
                with pytest.raises(asyncio.CancelledError):
                    await task

        run(work())

    def test_a_cancelled_one_leaves_the_others_in_their_order(self) -> None:
        entered: list[int] = []

        async def waits(number: int) -> None:
            async with lock(NAME, ttl=LONG, wait=None):
                entered.append(number)

        async def work() -> None:
            held = await locks.aacquire(NAME, ttl=LONG)
            assert held is not None
            tasks = []
            for number in range(5):
                tasks.append(asyncio.create_task(waits(number)))
                await queued(number + 1)
            tasks[0].cancel()
            tasks[2].cancel()
            await queued(3)
            await held.arelease()
            await asyncio.gather(*tasks, return_exceptions=True)

        run(work())
        assert entered == [1, 3, 4]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("waits", [False, True], ids=["holding", "waiting"])
    def test_the_loop_ends_in_the_middle(self, waits: bool) -> None:
        loop = asyncio.new_event_loop()
        held = taken(NAME) if waits else None

        async def block() -> None:
            async with lock(NAME, ttl=LONG, wait=None):
                loop.stop()
                await asyncio.sleep(LONG)

        task: Any = loop.create_task(block())
        if waits:
            loop.run_until_complete(queued_on(loop))
        else:
            loop.run_forever()
        loop.close()
        # When the lock is released only now, nobody is there who could take it
        if held is not None:
            assert held.release()
            until(lambda: not locks.is_locked(NAME), "the lock to be free")
        task._log_destroy_pending = False
        del task
        gc.collect()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_the_coroutine_is_closed(self) -> None:
        async def block() -> None:
            async with lock(NAME, ttl=LONG):
                await Once()

        async def work() -> None:
            coroutine = block()
            future = coroutine.send(None)
            while future is not None:
                await asyncio.wait({future})
                future = coroutine.send(None)
            assert await locks.ais_locked(NAME)
            coroutine.close()

        run(work())

    def test_a_generator_is_closed(self) -> None:
        async def generates() -> Any:
            async with lock(NAME, ttl=LONG):
                yield 1

        async def work() -> None:
            generator = generates()
            async for _ in generator:
                break
            assert await locks.ais_locked(NAME)
            await generator.aclose()

        run(work())

    def test_the_holders_process_is_killed(self) -> None:
        def dies() -> None:
            import os
            import signal

            taken(NAME)
            os.kill(os.getpid(), signal.SIGKILL)

        killed_in_child(dies)
        lease = run(locks.aacquire(NAME, ttl=LONG, wait=PATIENCE))
        assert lease is not None
        lease.release()

    def test_a_forked_child_has_threads_of_its_own(self) -> None:
        run(still_works())
        assert in_child(lambda: run(still_works()))

    def test_its_signals_are_sent(self) -> None:
        with sent(signals.lock_acquired) as acquired, sent(signals.lock_released) as released:
            run(still_works())
        (lease,) = [each["lease"] for each in acquired]
        assert [each["lease"] for each in released].count(lease) == 1


class Once:
    """What is awaited with `None`, and never goes on."""

    def __await__(self) -> Generator[None, None, None]:
        yield None


async def queued_on(loop: asyncio.AbstractEventLoop) -> None:
    await queued(1)


async def still_works() -> bool:
    async with lock(NAME, ttl=LONG, wait=PATIENCE) as lease:
        return lease.held


class TestOutage:
    def test_it_is_an_outage(self, cut_proxy: CutProxy, use_redis: UseRedis) -> None:
        use_redis(cut_proxy.url)
        cut_proxy.refuse()
        cut_proxy.cut()
        for verb in (locks.aacquire(NAME), locks.aget(NAME), locks.acount(), locks.aclear(NAME)):
            with pytest.raises(StoreUnavailable):
                run(verb)

        async def block() -> None:
            async with lock(NAME):
                pass

        with pytest.raises(StoreUnavailable):
            run(block())

    def test_waiters_go_on_after_a_cut(self, cut_proxy: CutProxy, use_redis: UseRedis) -> None:
        use_redis(cut_proxy.url)

        async def waits() -> bool:
            async with lock(NAME, ttl=LONG, wait=PATIENCE) as lease:
                return lease.held

        async def work() -> list[bool]:
            held = await locks.aacquire(NAME, ttl=LONG)
            assert held is not None
            tasks = [asyncio.create_task(waits()) for _ in range(5)]
            await queued(5)
            cut_proxy.cut()
            assert await held.arelease()
            return await asyncio.gather(*tasks)

        assert run(work()) == [True] * 5
        assert not locks.is_locked(NAME)

    def test_waiters_are_told_of_an_outage(self, cut_proxy: CutProxy, use_redis: UseRedis) -> None:
        use_redis(cut_proxy.url)

        async def work() -> None:
            held = await locks.aacquire(NAME, ttl=LONG)
            assert held is not None
            tasks = [asyncio.create_task(locks.aacquire(NAME, wait=None)) for _ in range(5)]
            await queued(5)
            cut_proxy.refuse()
            cut_proxy.cut()
            told = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in told] == [StoreUnavailable] * 5
            cut_proxy.accept()
            await held.arelease()

        run(work())
        until(lambda: not locks.is_locked(NAME), "the lock to be free")
