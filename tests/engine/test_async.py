"""``async with lock(...)``, ``@lock(...)`` on ``async def``, and the verbs to await."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest
from django.conf import settings
from django.db import connections

from django_tasklock import Lease, LeaseLost, LockNotAcquired, lock, locks, signals
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseRedis
from tests.steps import LONG, Meanwhile, taken
from tests.waiting import PATIENCE, until

T = TypeVar("T")

NAME = "video:1"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it on an event loop of its own, and not for ever."""
    return asyncio.run(asyncio.wait_for(work, 3 * PATIENCE))


async def queued(count: int, name: str = NAME) -> None:
    """Return when so many wait for the lock."""
    for _ in range(int(PATIENCE * 100)):
        if len(await locks.awaiters(name)) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{count} did not come to wait for {name}")


async def entered(block: Any) -> Any:
    """What a block that does nothing gets."""
    async with block as lease:
        return lease


class TestOnEveryStore:
    def test_a_block_holds_the_lock(self, store: BaseStore) -> None:
        async def work() -> Lease:
            async with lock(NAME, ttl=LONG) as lease:
                info = await locks.aget(NAME)
                assert info is not None
                assert info.token == lease.token
                with pytest.raises(LockNotAcquired):
                    await entered(lock(NAME))
                assert await lease.aextend(LONG)
            assert not await locks.ais_locked(NAME)
            return lease

        assert not run(work()).held

    @pytest.mark.parametrize("slots", [1, 3])
    def test_many_take_turns(self, store: BaseStore, slots: int) -> None:
        if settings.CACHES["default"]["BACKEND"].endswith("FileBasedCache"):
            pytest.skip("its add is not atomic")
        inside: set[int] = set()
        done: list[int] = []

        async def one(number: int) -> None:
            async with lock(NAME, ttl=LONG, wait=None, slots=slots):
                inside.add(number)
                assert len(inside) <= slots
                await asyncio.sleep(0.01)
                inside.remove(number)
                done.append(number)

        async def work() -> None:
            await asyncio.gather(*map(one, range(9)))

        run(work())
        assert sorted(done) == list(range(9))
        assert not locks.is_locked(NAME)
        assert not locks.is_locked(f"{NAME}#1")


def test_no_call_to_the_store_is_made_in_the_loops_thread(
    tasklock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = dict[str, int]()

    def watched(verb: str, call: Any) -> Any:
        def watch(*args: Any, **kwargs: Any) -> Any:
            threads[verb] = threading.get_ident()
            return call(*args, **kwargs)

        return watch

    async def work() -> None:
        async with lock(NAME, ttl=LONG) as lease:
            await lease.aextend()
            await locks.aacquire(NAME, wait=0.01)
            await locks.aget(NAME)
            await locks.alist()
            await locks.aclear("another")

    verbs = {"acquire", "extend", "waiter", "get", "list", "clear", "release"}
    for verb in verbs:
        monkeypatch.setattr(locks.store, verb, watched(verb, getattr(locks.store, verb)))
    run(work())
    assert set(threads) == verbs
    assert threading.get_ident() not in threads.values()


def test_questions_without_an_answer_delay_no_release(
    tasklock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    async def work() -> None:
        lease = await locks.aacquire(NAME)
        monkeypatch.setattr(locks.store, "get", lambda _: answer.wait(PATIENCE) and None)
        asking = [asyncio.create_task(locks.aget("another")) for _ in range(6)]
        await asyncio.sleep(0)
        assert lease is not None
        assert await lease.arelease()
        assert not any(task.done() for task in asking)
        answer.set()
        await asyncio.gather(*asking)

    run(work())


@pytest.mark.parametrize("each", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_many_tasks_wait_for_ten_locks_without_threads(each: int, use_redis: UseRedis) -> None:
    use_redis()
    names = [f"video:{number}" for number in range(10)]
    inside, done, before = Counter[str](), Counter[str](), threading.active_count()

    async def one(name: str) -> None:
        async with lock(name, ttl=LONG, wait=None):
            inside[name] += 1
            assert inside[name] == 1
            await asyncio.sleep(0)
            inside[name] -= 1
            done[name] += 1

    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                await stack.enter_async_context(lock(name, ttl=10 * LONG))
            tasks = [asyncio.create_task(one(name)) for name in names * each]
            for name in names:
                await queued(each, name)
            # Six that call the store, one that listens, one that renews, one that notes.
            assert threading.active_count() - before <= 9
        await asyncio.gather(*tasks)

    run(work())
    assert done == dict.fromkeys(names, each)
    assert locks.count() == 0


@pytest.mark.usefixtures("on_redis")
class TestVerbs:
    def test_they_do_what_those_without_the_a_do(self) -> None:
        async def work() -> None:
            lease = await locks.aacquire(
                NAME, ttl=LONG, wait=1, renew=False, slots=1, hold_at_least=0
            )
            assert lease is not None
            assert [info.name for info in await locks.alist("video:")] == [NAME]
            assert await locks.alist("video:", limit=0) == []
            assert await locks.acount("video:") == 1
            assert await locks.aacquire(NAME) is None
            assert [event.kind for event in await locks.ahistory(NAME)] == ["refused"]
            assert not await locks.aclear(NAME, "another-token-0123456789"[:22])
            assert await locks.aclear(NAME)
            assert not await lease.arelease()
            assert await locks.aget(NAME) is None
            leases = await locks.aacquire_all(["seat:2", "seat:1"], ttl=LONG)
            assert leases is not None
            assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
            assert await locks.aacquire_all(["seat:3", "seat:1"]) is None
            assert await locks.acount("seat:") == 2

        run(work())

    def test_a_thread_releases_what_a_task_took_and_the_owner_names_the_task(self) -> None:
        async def work() -> Any:
            return await asyncio.create_task(locks.aacquire(NAME), name="nightly")

        lease = run(work())
        assert "nightly" in lease.owner.thread
        assert Meanwhile(lease.release).result()
        assert run(taken(NAME).arelease())
        assert not locks.is_locked(NAME)

    @pytest.mark.parametrize("raised", [None, KeyError])
    def test_a_lost_lease_is_an_error_unless_the_block_has_its_own(self, raised: Any) -> None:
        async def work() -> None:
            async with lock(NAME, ttl=LONG):
                await locks.aclear(NAME)
                if raised:
                    raise raised

        with pytest.raises(raised or LeaseLost):
            run(work())

    def test_a_receiver_has_the_tasks_context_and_leaves_nothing_open(
        self, transactional_db: None
    ) -> None:
        tenant = ContextVar("tenant", default="nobody")
        seen: list[Any] = []

        def receiver(**_: Any) -> None:
            connections["default"].ensure_connection()
            seen.extend([connections["default"], tenant.get()])

        async def work() -> None:
            tenant.set("acme")
            await entered(lock(NAME))

        signals.lock_acquired.connect(receiver)
        run(work())
        signals.lock_acquired.disconnect(receiver)
        assert (seen[0].connection, seen[1]) == (None, "acme")

    def test_a_loss_is_told_off_the_loop(self) -> None:
        """A receiver may block, as one that asks a database does."""
        told: list[int] = []
        receiver = lambda **_: told.append(threading.get_ident())  # noqa: E731
        signals.lock_lost.connect(receiver)

        async def lose() -> None:
            lease = await locks.aacquire(NAME, ttl=0.05)
            until(lambda: lease is not None and not lease.held)

        run(lose())
        until(lambda: told)
        signals.lock_lost.disconnect(receiver)
        assert told[0] != threading.get_ident()

    def test_other_kinds_in_an_exit_stack(self) -> None:
        async def work() -> None:
            async with contextlib.AsyncExitStack() as stack:
                leases = await stack.enter_async_context(lock(["seat:2", "seat:1"], ttl=LONG))
                assert [lease.name for lease in leases] == ["seat:2", "seat:1"]
                with pytest.raises(LockNotAcquired) as refused:
                    await entered(lock(["seat:0", "seat:1"]))
                assert refused.value.name == "seat:1"
                assert not await locks.ais_locked("seat:0")
                await stack.enter_async_context(lock(NAME, cooldown=LONG))
            assert [info.name for info in await locks.alist()] == [NAME]
            with pytest.raises(LockNotAcquired, match="cooling"):
                await entered(lock(NAME))

        run(work())

    def test_a_decorated_coroutine_has_the_lock_of_its_arguments(self) -> None:
        @lock("report:{date}", on_conflict="skip", cooldown=LONG, cooldown_after_error=0)
        async def report(date: str) -> bool:
            if date == "never":
                raise ZeroDivisionError
            return await locks.ais_locked("report:monday")

        @lock("report:{date}")
        async def refused(date: str) -> None: ...

        assert inspect.iscoroutinefunction(report)
        assert run(report("monday"))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                run(report("never"))
        assert run(report("monday")) is None
        with pytest.raises(LockNotAcquired, match="cooling"):
            run(refused("monday"))
