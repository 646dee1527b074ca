"""``lock(..., reentrant=True)``: who holds the lock takes it again, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_tasklock import (
    Lease,
    LeaseLost,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock._engine import reentrant
from django_tasklock._engine.context import LockContext
from django_tasklock._engine.running import running
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent, run_python
from tests.conftest import UseCaches, UseRedis
from tests.greenlets import LIBRARIES, run_in_greenlets
from tests.interruptions import assert_over, at_every_instruction, interrupted
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, in_child, sent, taken
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE, until


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def again(
    name: str = "video:1", *, renew: bool = True, wait: float | None = 0, store: str = "default"
) -> LockContext[Lease]:
    return lock(name, ttl=LONG, reentrant=True, renew=renew, wait=wait, store=store)


def block(shared: LockContext[Lease]) -> Iterator[Lease]:
    """A block that is left when the generator goes on, or is closed."""
    with shared as lease:
        yield lease


def refused(name: str = "video:1") -> bool:
    """Whether whoever calls this cannot take the lock again."""
    try:
        with again(name):
            return False
    except LockNotAcquired:
        return True


def remembered() -> int:
    """How many holds this thread has, without those that an exception of an earlier test keeps
    until the garbage collector comes."""
    gc.collect()
    return len(reentrant._holds.of(running()))


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
        with again() as outer, sent(signals.lock_acquired) as acquired:
            traffic = Traffic(redis_server)
            for _ in range(10):
                with again() as inner:
                    assert (inner.token, inner.fence) == (outer.token, outer.fence)
            assert traffic.scripts() == 0
        assert acquired == []

    def test_one_object_nests_as_well(self) -> None:
        shared = again()
        with shared as first, shared as second, shared as third:
            assert first is second is third
        assert not locks.is_locked("video:1")
        with shared as fresh:
            assert fresh.token != first.token

    def test_other_names_and_other_stores_are_other_locks(
        self, use_caches: UseCaches, redis_server: RedisServer
    ) -> None:
        use_caches(
            {"default": redis_cache(redis_server.url), "other": redis_cache(redis_server.url)},
            {"default": {}, "other": {"CACHE": "other"}},
        )
        with again() as first, again("video:2") as second, again(store="other") as third:
            assert len({first.token, second.token, third.token}) == 3
            assert locks.using("other").is_locked("video:1")
        assert not locks.using("other").is_locked("video:1")

    def test_what_an_inner_block_wishes_changes_nothing(self) -> None:
        with lock("video:1", ttl=20, renew=False, reentrant=True) as lease:
            ends = lease._deadline
            with again(renew=True, wait=None) as inner:
                assert (inner.ttl, inner.renew, inner._deadline) == (20, False, ends)
            assert lease._deadline == ends

    def test_error_of_the_inner_block_leaves_the_outer_one_alone(self) -> None:
        with again() as lease:
            with pytest.raises(KeyError), again():
                raise KeyError("boom")
            assert lease.held
            assert holder("video:1").token == lease.token
        assert not locks.is_locked("video:1")

    def test_lock_that_is_not_reentrant_is_refused(self) -> None:
        with again() as lease:
            with pytest.raises(LockNotAcquired), lock("video:1"):
                pytest.fail("the block ran")  # pragma: no cover
            assert locks.acquire("video:1") is None
            assert lease.held
        with lock("video:1"):
            assert refused()

    def test_blocks_that_end_out_of_order(self) -> None:
        first, second, third = block(again()), block(again()), block(again())
        lease = next(first)
        assert next(second) is next(third) is lease
        assert next(first, "over") == "over"
        assert next(third, "over") == "over"
        assert lease.held
        assert holder("video:1").token == lease.token
        with again() as inner:
            assert inner is lease
        assert next(second, "over") == "over"
        assert not locks.is_locked("video:1")

    def test_block_that_is_resumed_by_another_thread_stays_one_of_its_beginner(self) -> None:
        opened = block(again())
        lease = next(opened)

        def elsewhere() -> bool:
            was_refused = refused()
            assert next(opened, "over") == "over"
            return was_refused

        with again():
            assert Meanwhile(elsewhere).result() is True
            assert lease.held
            assert holder("video:1").token == lease.token
        assert not locks.is_locked("video:1")

    def test_last_block_may_end_in_another_thread(self) -> None:
        opened = block(again())
        with again():
            lease = next(opened)
        assert lease.held
        Meanwhile(lambda: next(opened, None)).result()
        assert not locks.is_locked("video:1")

    def test_stack_that_is_closed_in_another_thread(self) -> None:
        with contextlib.ExitStack() as here:
            lease = here.enter_context(again())
            with contextlib.ExitStack() as elsewhere:
                assert elsewhere.enter_context(again()) is lease
                moved = elsewhere.pop_all()
            here.close()
            assert lease.held
            Meanwhile(moved.close).result()
        assert not locks.is_locked("video:1")

    def test_entered_and_left_by_hand(self) -> None:
        shared = again()
        outer, inner = shared.__enter__(), shared.__enter__()
        assert inner is outer
        shared.__exit__(None, None, None)
        assert outer.held
        Meanwhile(lambda: shared.__exit__(None, None, None)).result()
        assert not locks.is_locked("video:1")
        with pytest.raises(RuntimeError, match="left already, or never entered"):
            shared.__exit__(None, None, None)

    def test_entered_by_hand_and_dropped_with_its_object(self) -> None:
        lease = again().__enter__()
        until(lambda: not locks.is_locked("video:1"), "the end of what nobody can leave any more")
        assert not lease.held

    def test_nothing_is_remembered_of_blocks_that_ended(self) -> None:
        before = remembered()
        for number in range(20):
            with again(f"video:{number}"), again(f"video:{number}"):
                assert remembered() == before + 1
        assert remembered() == before

    def test_wrong_argument(self) -> None:
        with pytest.raises(TypeError, match="reentrant is a bool"):
            lock("video:1", reentrant=1)  # type: ignore[call-overload]


@pytest.mark.usefixtures("on_redis")
class TestCalls:
    def test_recursive_function_holds_its_lock_once(self) -> None:
        tokens = []

        @lock("tree:{root}", ttl=LONG, reentrant=True)
        def walk(root: str, depth: int) -> int:
            tokens.append(holder(f"tree:{root}").token)
            return depth if depth == 3 else walk(root, depth + 1)

        assert walk("a", 0) == 3
        assert len(tokens) == 4
        assert len(set(tokens)) == 1
        assert not locks.is_locked("tree:a")

    def test_skip_is_for_others_only(self) -> None:
        @lock("report", ttl=LONG, reentrant=True, on_conflict="skip")
        def build() -> str:
            return "done"

        with again("report"):
            assert build() == "done"
            assert Meanwhile(build).result() is None
        assert build() == "done"


@pytest.mark.usefixtures("on_redis")
class TestLoss:
    def test_inner_and_outer_block_both_say_it(self) -> None:
        said = []

        def work() -> None:
            with again() as lease:
                try:
                    with again():
                        assert locks.clear("video:1")
                        assert lease.extend() is False
                except LeaseLost as error:
                    said.append(error.name)

        with pytest.raises(LeaseLost):
            work()
        assert said == ["video:1"]
        assert remembered() == 0

    def test_nobody_begins_a_block_under_a_lost_lease(self) -> None:
        def work() -> None:
            with again() as lease:
                assert locks.clear("video:1")
                assert lease.extend() is False
                with pytest.raises(LeaseLost, match="the store no longer has it"), again():
                    pytest.fail("the block ran")  # pragma: no cover

        with pytest.raises(LeaseLost) as lost:
            work()
        assert lost.value.__traceback__ is not None
        with again():  # The one that was lost has ended, though the error still refers to it.
            assert locks.is_locked("video:1")

    def test_error_of_the_inner_block_comes_first(self) -> None:
        def work() -> None:
            with again() as lease, again():
                assert locks.clear("video:1")
                assert lease.extend() is False
                raise KeyError("boom")

        with pytest.raises(KeyError):
            work()

    def test_lease_that_was_released_inside_is_taken_anew(self) -> None:
        with again() as first, again() as second:
            assert first.release() is True
            with again() as third:
                assert third.token != second.token
            assert not locks.is_locked("video:1")
        assert not locks.is_locked("video:1")

    def test_outage_at_the_last_exit(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)

        def work() -> None:
            with again(renew=False):
                with again(renew=False):
                    cut_proxy.refuse()
                    cut_proxy.cut()
                asked.append("no store at the inner exit")

        asked: list[str] = []
        with pytest.raises(StoreUnavailable):
            work()
        assert len(asked) == 1
        cut_proxy.accept()
        until(lambda: not locks.is_locked("video:1"))

    def test_child_of_a_fork_owns_nothing(self) -> None:
        shared = again()
        with shared as lease:

            def child() -> list[Any]:
                was_refused = refused()
                own = again("video:2")
                with own, own as inner:
                    held = inner.held
                return [was_refused, held, locks.is_locked("video:2"), lease.held]

            assert in_child(child) == [True, True, False, False]
            with shared as inner:
                assert inner is lease
        assert not locks.is_locked("video:1")

    def test_child_may_take_what_its_parent_had_lost(self) -> None:
        def child() -> bool:
            with again() as lease:
                return lease.held

        def work() -> None:
            with again() as lease:
                assert locks.clear("video:1")
                assert lease.extend() is False
                assert in_child(child) is True

        with pytest.raises(LeaseLost):
            work()

    def test_child_that_leaves_its_parents_blocks_releases_nothing(self) -> None:
        shared = again()
        lease = shared.__enter__()
        shared.__enter__()

        def child() -> list[str]:
            said = []
            for _ in range(2):
                try:
                    shared.__exit__(None, None, None)
                except LeaseLost as error:
                    said.append(error.reason)
            return said

        assert in_child(child) == ["it belongs to the parent of this forked process"] * 2
        assert lease.held
        assert holder("video:1").token == lease.token
        shared.__exit__(None, None, None)
        shared.__exit__(None, None, None)
        assert not locks.is_locked("video:1")


@pytest.mark.usefixtures("on_redis")
class TestOthers:
    """Whatever runs beside the holder does not share its lease."""

    def test_thread(self) -> None:
        with again():
            assert Meanwhile(refused).result()

    def test_thread_of_a_pool_with_the_context_of_its_caller(self) -> None:
        with again(), ThreadPoolExecutor(1) as pool:
            context = contextvars.copy_context()
            assert pool.submit(context.run, refused).result(PATIENCE)

    def test_thread_that_waits_is_the_next_holder(self) -> None:
        def work() -> str:
            with again(wait=PATIENCE) as lease:
                return lease.token

        with again() as lease:
            thread = Meanwhile(work)
            with again():
                until(lambda: holder("video:1").waiters == 1)
        assert thread.result() != lease.token

    def test_thread_that_has_the_number_of_one_that_ended(self) -> None:
        opened: list[Any] = []

        def begin() -> int:
            generator = block(again())
            next(generator)
            opened.append(generator)
            return threading.get_ident()

        first = threading.Thread(target=lambda: numbers.append(begin()))
        numbers: list[int] = []
        first.start()
        first.join(PATIENCE)
        answers: list[tuple[int, bool]] = []
        over = threading.Event()

        def ask() -> None:
            answers.append((threading.get_ident(), refused()))
            over.wait(PATIENCE)

        # All of them live until the number has come: another thread may have ended as well, and its
        # number would come again and again.
        later: list[threading.Thread] = []
        while numbers[0] not in [number for number, _ in answers] and len(later) < 50:
            later.append(threading.Thread(target=ask))
            later[-1].start()
            until(lambda: len(answers) == len(later))
        over.set()
        for thread in later:
            thread.join(PATIENCE)
        assert numbers[0] in [number for number, _ in answers], "no number came again"
        assert all(was_refused for _, was_refused in answers)
        opened[0].close()
        assert not locks.is_locked("video:1")

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
                    await sync_to_async(refused, thread_sensitive=False)(),
                ]

        assert asyncio.run(work()) == [False, *[True] * 6]
        assert not locks.is_locked("video:1")

    def test_two_tasks_of_one_thread_take_turns(self) -> None:
        inside: list[str] = []

        async def work(name: str) -> None:
            while True:
                with contextlib.suppress(LockNotAcquired), again():
                    inside.append(name)
                    assert len(set(inside)) == 1, "two at once"
                    with again():
                        await asyncio.sleep(0.01)
                    assert len(set(inside)) == 1, "two at once"
                    inside.clear()
                    return
                await asyncio.sleep(0)

        async def both() -> None:
            await asyncio.gather(*(work(name) for name in "abcdef"))

        asyncio.run(both())
        assert not locks.is_locked("video:1")

    def test_thread_does_not_share_with_the_loop_that_it_runs(self) -> None:
        async def nested() -> bool:
            return refused()

        with again():
            assert asyncio.run(nested())
            assert async_to_sync(nested)()

        async def outer() -> bool:
            with again():
                asyncio.get_running_loop().call_soon(lambda: answers.append(refused()))
                await asyncio.sleep(0)
                return bool(answers)

        answers: list[bool] = []
        assert asyncio.run(outer())
        assert answers == [True], "a callback is no part of the task"

    def test_task_leaves_nothing_behind(self) -> None:
        async def work() -> Any:
            with again(), again():
                assert remembered() == 1
            return weakref.ref(asyncio.current_task())

        ended = asyncio.run(work())
        gc.collect()
        assert ended() is None
        assert len(reentrant._holds._of_others) == 0


GREENLETS = """
from django_tasklock import LockNotAcquired, lock, locks

def again():
    return lock("video:1", ttl=60, reentrant=True)

def refused():
    try:
        with again(), again():
            return False
    except LockNotAcquired:
        return True

def holds():
    with again() as outer:
        sleep(0)
        with again() as inner:
            assert inner is outer
            assert join(spawn(refused)), "shared with one that it started"
    return refused()

with again():
    assert not refused()
    assert join(spawn(refused)), "shared with another"
assert not join(spawn(holds))

inside = []
def turns(name):
    while True:
        try:
            with again():
                inside.append(name)
                with again():
                    sleep(0.01)
                assert inside == [name], inside
                inside.clear()
                return
        except LockNotAcquired:
            sleep(0)

for started in [spawn(turns, name) for name in "abcdef"]:
    join(started)

import threading
answers = []
with again():
    thread = threading.Thread(target=lambda: answers.append(refused()))
    thread.start()
    thread.join()
assert answers == [True], answers
import gc
from django_tasklock._engine import reentrant
del started, thread
for _ in range(5):
    sleep(0.01)
gc.collect()
print(locks.is_locked("video:1"), len(reentrant._holds._of_others))
"""


@pytest.mark.usefixtures("on_redis")
@pytest.mark.parametrize("library", LIBRARIES)
def test_greenlets_do_not_share(library: str) -> None:
    assert run_in_greenlets(GREENLETS, library) == ["False", "0"]


LOOPS_IN_GREENLETS = """
import asyncio
import django
django.setup()
import greenlet
from django_tasklock import LockNotAcquired, lock

def refused():
    try:
        with lock("video:1", ttl=60, reentrant=True):
            return False
    except LockNotAcquired:
        return True

async def nested():
    return refused()

async def work():
    with lock("video:1", ttl=60, reentrant=True):
        within = greenlet.greenlet(refused).switch()
        outside = main.switch()
        return [refused(), within, outside, *await asyncio.gather(nested(), nested())]

main = greenlet.getcurrent()
other = greenlet.greenlet(lambda: asyncio.run(work()))
other.switch()
# The loop of the other greenlet runs in this thread, and its task is the current one.
assert asyncio.current_task() is not None
print(*other.switch(refused()))
"""


@pytest.mark.usefixtures("on_redis")
def test_task_and_greenlet_are_both_looked_at() -> None:
    said = run_python(LOOPS_IN_GREENLETS)
    assert said.split() == ["False", "True", "True", "True", "True"]


@pytest.mark.usefixtures("on_redis")
class TestThreads:
    def test_one_object_serves_many_threads(self) -> None:
        shared, inside = again(wait=PATIENCE), threading.Lock()

        def work() -> None:
            for _ in range(20):
                with shared as lease:
                    assert inside.acquire(blocking=False), "two at once"
                    with shared as inner, again():
                        assert inner is lease
                    assert lease.held
                    inside.release()

        threads = [Meanwhile(work) for _ in range(8)]
        for thread in threads:
            thread.result()
        assert not locks.is_locked("video:1")

    def test_blocks_that_other_threads_end_at_the_same_time(self) -> None:
        """One of them releases, whichever is the last."""
        for _ in range(100):
            opened = [block(again()) for _ in range(4)]
            leases = {next(one).token for one in opened}
            assert len(leases) == 1
            together = threading.Barrier(4)

            def end(one: Iterator[Lease], together: threading.Barrier = together) -> None:
                together.wait()
                assert next(one, "over") == "over"

            threads = [Meanwhile(lambda one=one: end(one)) for one in opened]  # type: ignore[misc]
            for thread in threads:
                thread.result()
            assert not locks.is_locked("video:1")


def test_use_that_comes_while_the_last_one_leaves_in_another_thread_does_not_share() -> None:
    hold = reentrant.Hold("default", "video:1", running())
    first, second, third = (reentrant.ReentrantUse(None) for _ in range(3))
    assert hold.add(first)
    assert hold.add(second)
    assert hold.remove(first) is False
    assert hold.remove(second) is True
    assert hold.add(third) is False
    assert hold.remove(third) is True, "it releases if the others saw it, and did not"


@pytest.mark.nightly
@pytest.mark.usefixtures("on_redis")
class TestEveryInstruction:
    @pytest.fixture(params=[True, False], ids=["renewed", "not renewed"])
    def renew(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    def test_of_nested_blocks(self, renew: bool) -> None:
        before = remembered()

        def use_it(name: str) -> None:
            with again(name, renew=renew), again(name):
                pass

        assert at_every_instruction(use_it, "video:1", "use_it") > 200
        assert remembered() == before

    def test_of_a_recursive_call(self, renew: bool) -> None:
        before = remembered()

        @lock("video:1", ttl=LONG, renew=renew, reentrant=True)
        def use_it(depth: int) -> None:
            if depth:
                use_it(depth - 1)

        assert at_every_instruction(lambda name: use_it(1), "video:1", "use_it") > 200
        assert remembered() == before

    def test_of_blocks_that_end_out_of_order(self, renew: bool) -> None:
        before = remembered()

        def use_it(name: str) -> None:
            first, second = block(again(name, renew=renew)), block(again(name))
            next(first)
            next(second)
            next(first, None)
            next(second, None)

        assert at_every_instruction(use_it, "video:1", "block") > 200
        assert remembered() == before

    def test_of_an_inner_block_leaves_the_outer_one_its_lease(self, renew: bool) -> None:
        """Neither is the lock released too early, nor does it need the garbage collector."""

        def use_it() -> None:
            with again():
                pass

        number, missed = 0, 0
        while missed < 3:
            number += 1
            with again(renew=renew) as lease:
                with interrupted(number, "use_it") as where:
                    use_it()
                missed = 0 if where else missed + 1
                assert lease.held, where
                assert holder("video:1").token == lease.token, where
                assert lease.renew is renew
                with again() as inner:
                    assert inner is lease, where
            assert not locks.is_locked("video:1"), where
            assert_over("video:1", where)
        assert number > 60

    def test_of_an_outer_exit_leaves_the_inner_block_its_lease(self, renew: bool) -> None:
        number, missed = 0, 0
        while missed < 3:
            number += 1
            first, second = block(again(renew=renew)), block(again())
            lease = next(first)
            next(second)
            with interrupted(number, "block") as where:
                next(first, None)
            missed = 0 if where else missed + 1
            del first
            assert lease.held, where
            assert holder("video:1").token == lease.token, where
            next(second, None)
            assert not locks.is_locked("video:1"), where
            assert_over("video:1", where)
        assert number > 10


@pytest.mark.usefixtures("on_redis")
def test_killed_holder_is_taken_over() -> None:
    with Agent() as agent:
        token = agent.ask("enter", name="video:1", ttl=LONG, reentrant=True)
        assert agent.ask("enter", name="video:1", ttl=LONG, reentrant=True) == token
        assert locks.acquire("video:1") is None
        agent.kill()
        assert taken("video:1").release()
