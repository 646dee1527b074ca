"""``lock()``: a lease for the length of a block, or of a call. What people try who know other locks
is an error at once, with the mend in it; or it works."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from django_tasklock.caching import cached_once
from django_tasklock.celery import LockedTask
from django_tasklock.leader import lead
from django_tasklock.tasks import locked
from django_tasklock.views import lock_view
from tests.inside import kept
from tests.steps import LONG, Meanwhile, all_of, holder, taken, waiting
from tests.waiting import until


@pytest.fixture(params=["on_redis", "on_locmem"])
def _store(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


@pytest.mark.usefixtures("_store")
class TestBlock:
    def test_the_lock_is_held_in_the_block_and_not_after_it(self) -> None:
        # Given a block
        with lock("video:1", ttl=LONG) as lease:
            # I expect it to have a lease on its lock
            assert (lease.name, lease.held, lease.store) == ("video:1", True, "default")
            assert 0 < lease.remaining <= lease.ttl == LONG
            assert holder("video:1").token == lease.token
            lease.assert_held()
        # And its end to be the end of the lease
        assert not locks.is_locked("video:1")
        assert (lease.held, lease.remaining) == (False, 0.0)

    def test_taken_lock_raises_with_its_name_and_holder(self) -> None:
        other = taken("video:1")
        with pytest.raises(LockNotAcquired) as refused, lock("video:1"):
            pytest.fail("the block ran")  # pragma: no cover
        assert refused.value.name == "video:1"
        assert refused.value.holder is not None
        assert refused.value.holder.token == other.token
        assert str(other.owner) in str(refused.value)

    @pytest.mark.parametrize("error", [KeyError("boom"), SystemExit(3)], ids=repr)
    def test_error_in_the_block_releases_and_goes_on_its_way(self, error: BaseException) -> None:
        with pytest.raises(type(error)) as raised, lock("video:1"):
            raise error
        assert raised.value is error
        assert not locks.is_locked("video:1")

    def test_lapsed_lease_is_said_at_the_end_of_the_block_unless_that_raised(self) -> None:
        def outlive(boom: dict[str, str]) -> None:
            with lock(f"video:{len(boom)}", ttl=0.05, renew=False) as lease:
                until(lambda: not lease.held)
                assert boom["boom"]

        for boom, error in (({"boom": "none"}, LeaseLost), ({}, KeyError)):
            with pytest.raises(error, match=r"ran out|boom"):
                outlive(boom)


@pytest.mark.usefixtures("_store")
class TestDecorator:
    def test_each_call_has_a_lease_of_its_own_name(self) -> None:
        held = []

        class Report(str):
            @lock("report:{self}:{how}", ttl=LONG)
            def build(self, how: str, *, copies: int = 1) -> str:
                held.append(holder(f"report:{self}:{how}").token)
                return f"{copies} of {self}"

        assert Report("mon").build("pdf") == "1 of mon"
        assert Report("tue").build(how="pdf", copies=2) == "2 of tue"
        assert Report("mon").build("pdf") == "1 of mon"
        assert len(set(held)) == 3
        assert not locks.is_locked("report:mon:pdf")
        assert (Report.build.__name__, Report.build.__module__) == ("build", __name__)
        # A function may be written in C, and have no signature.
        assert lock("video:1")(max)(1, 2) == 2
        assert lock("video:1")(print)() is None  # It has one since Python 3.11.

    def test_skip_returns_none_and_swallows_no_refusal_from_within(self) -> None:
        taken("report:mon"), taken("other")

        @lock("report:{date}", on_conflict="skip")
        def build(date: str) -> str:
            with lock("other" if date == "wed" else "none"):
                return date

        assert build("mon") is None
        assert build("tue") == "tue"
        with pytest.raises(LockNotAcquired):
            build("wed")
        assert not locks.is_locked("report:wed")
        block: Any = lock("video:2", on_conflict="skip")
        with pytest.raises(TypeError, match="decorator"), block:
            pytest.fail("the block ran")  # pragma: no cover
        assert not locks.is_locked("video:2")

    def test_function_that_returns_before_its_body_runs_is_refused(self) -> None:
        async def many() -> AsyncIterator[int]:
            yield 1

        def one_by_one(_: object = None) -> Iterator[int]:
            yield 1

        class OneByOne:
            __call__ = one_by_one

        for function in (many, one_by_one, functools.partial(one_by_one), OneByOne()):
            with pytest.raises(TypeError, match=r"Use `with lock"):
                lock("report")(function)
        with pytest.raises(TypeError, match=r"OneByOne: .* Decorate the method that does the work"):
            lock("report")(OneByOne)

    def test_what_is_no_function_is_refused_with_the_order_to_write(self) -> None:
        def work(_: object = None) -> None: ...

        made: list[Any] = [staticmethod, classmethod, property, functools.cached_property]
        for decorator in made:
            says = f"it is a {decorator.__name__}. Put the decorator that makes it above @lock"
            with pytest.raises(TypeError, match=re.escape(says)):
                lock("report")(decorator(work))

    def test_a_decorator_that_hides_that_a_function_is_async_is_an_error_when_it_is_called(
        self,
    ) -> None:
        def hides(function: Callable[..., Any]) -> Any:
            @functools.wraps(function)
            def called(*args: Any) -> Any:
                return function(*args)

            return called

        async def work(*_: object) -> str:
            return str(holder("video:1").name)

        decorators: list[Any] = [lock("video:1"), lock_view("video:1"), locked("video:1")]
        for decorate in decorators:
            with pytest.raises(TypeError, match=r"work is async, .* below that decorator"):
                decorate(hides(work))(HttpRequest())
            assert not locks.is_locked("video:1")
            assert asyncio.run(hides(decorate(work))(HttpRequest())) == "video:1"


@pytest.mark.usefixtures("_store")
def test_one_object_serves_many_blocks_and_many_threads() -> None:
    shared, inside, tokens = lock("video:1", ttl=LONG, wait=LONG), threading.Lock(), []

    def enter() -> None:
        for _ in range(5):
            with shared as lease:
                assert inside.acquire(blocking=False), "two at once"
                tokens.append(lease.token)
                assert holder("video:1").token == lease.token
                inside.release()

    all_of(*[enter] * 6)
    assert len(set(tokens)) == 30
    assert not locks.is_locked("video:1")
    until(lambda: kept() == 0, "nothing of its uses is kept")


OWN = r"by this very thread; reentrant=True, or until_commit=True of both, lets it in again"


@lock("video:{video_id}", wait=None)
def work(video_id: int) -> str:
    return "done"


def enter(name: Any, wait: float | None = None) -> None:
    with lock(name, wait=wait):
        pytest.fail("the block ran")  # pragma: no cover


@pytest.mark.usefixtures("on_redis")
class TestOwnLock:
    """Whoever waits for a lock of its own thread or task would wait for itself."""

    @pytest.mark.parametrize("wait", [0, LONG, None])
    def test_a_block_inside_its_own_block_is_told_so_at_once(self, wait: float | None) -> None:
        # Given a block that holds a lock
        with lock("video:1") as outer:
            # I expect a block in it, for the same lock, to be an error at once that says what to do
            with pytest.raises(LockNotAcquired, match=OWN) as refused:
                enter("video:1", wait)
            assert refused.value.holder is not None
            assert refused.value.holder.token == outer.token
            assert waiting("video:1") == 0
            with pytest.raises(LockNotAcquired, match=OWN):
                enter(["seat:1", "video:1"])
            assert outer.held
        # And so with each of several locks
        with lock(["seat:1", "seat:2"]), pytest.raises(LockNotAcquired, match=OWN):
            enter("seat:2")

    def test_a_decorated_function_or_a_task_that_takes_its_own_lock_is_told_so(self) -> None:
        def again(video_id: int) -> str:
            return work(video_id)

        app: Any = Celery("mistakes", set_as_current=False)
        options: Any = {"base": LockedTask, "lock_name": "video:{video_id}", "shared": False}
        for call in (lock("video:{video_id}")(again), app.task(again, **options)):
            with pytest.raises(LockNotAcquired, match=OWN):
                call(1)
            assert not locks.is_locked("video:1")
        assert work(1) == "done"

    def test_a_task_of_a_loop_is_told_so_and_another_one_waits(self) -> None:
        async def main() -> bool:
            async with lock("video:1", ttl=LONG):
                with pytest.raises(LockNotAcquired, match=OWN):
                    await lock("video:1", wait=None).__aenter__()
                other = asyncio.create_task(locks.aacquire("video:1", ttl=LONG, wait=LONG))
                await asyncio.to_thread(until, lambda: locks.waiters("video:1"))
            return await other is not None

        assert asyncio.run(main())

    @pytest.mark.parametrize("slots", [1, 2])
    def test_one_object_for_two_blocks_that_overlap_in_a_thread_is_an_error(
        self, slots: int
    ) -> None:
        """As in two generators. The end of the first would release the lease of the second."""
        mine = lock("video:1", ttl=LONG, slots=slots)

        def work() -> Iterator[str]:
            with mine as lease:
                yield lease.name

        first, second = work(), work()
        locks.clear(next(first))
        with pytest.raises(RuntimeError, match=r"call lock\(\) for each block"):
            next(second)
        until(lambda: not locks.count(), "what the second had taken is given back")
        with pytest.raises(LeaseLost):
            next(first)
        assert next(work())

    def test_threads_may_share_an_object_and_each_ends_its_own_block(self) -> None:
        mine = lock("video:1", ttl=LONG, slots=3)
        leases = [Meanwhile(mine.__enter__).result() for _ in range(2)]
        with pytest.raises(RuntimeError, match=r"call lock\(\) for each block"):
            mine.__exit__(None, None, None)
        assert all(lease.held for lease in leases)
        with mine as third:
            assert third.held
        assert {info.token for info in locks.list()} == {lease.token for lease in leases}

    def test_a_lease_that_is_no_blocks_is_waited_for(self) -> None:
        threading.Timer(0.2, taken("video:1").release).start()
        assert work(1) == "done"
        taken("video:1")
        with pytest.raises(LockNotAcquired, match=r"^(?!.*this very thread)"):
            enter("video:1", 0)


@pytest.mark.usefixtures("on_redis")
class TestOtherLocks:
    def test_a_block_with_a_field_in_its_name_has_forgotten_its_f(self) -> None:
        for name in ("order:{id}", "order:{order.id}", "{self.pk!r}:{n:>3}", ["a", "o:{id}"]):
            with pytest.raises(ValueError, match=r'f-string|forgot.* f\b|f"'):
                enter(name)
        with lock("json:{}"):
            assert locks.is_locked("json:{}")

    def test_what_a_lock_does_not_have_is_an_error_that_says_what_is_meant(self) -> None:
        with pytest.raises(TypeError, match=r"locks\.acquire"):
            assert lock("a")
        for name in ("acquire", "release", "locked", "extend"):
            with pytest.raises(AttributeError, match=rf"{name}.*(locks\.|lease)"):
                getattr(lock("a"), name)
        assert not hasattr(lock("a"), "something")
        meant = {"timeout": "(ttl|wait)=", "blocking_timeout": "wait=", "expire": "ttl="}
        for wrong, says in {**meant, "blocking": "wait=", "colour": "colour"}.items():
            options: Any = {wrong: 5}
            for call in (lock, locks.acquire):
                with pytest.raises(TypeError, match=says):
                    call("a", **options)
        assert not locks.is_locked("a")

    def test_a_lease_is_released_at_the_end_of_its_block_which_says_its_loss(self) -> None:
        with taken("a") as lease:
            lease.assert_held()
        with taken("a") as lease:
            assert lease.release(), "which is no loss"
        with pytest.raises(KeyError), taken("a"):
            raise KeyError
        assert not locks.is_locked("a")
        with pytest.raises(LeaseLost), taken("a"):
            locks.clear("a")


def test_a_block_that_blocks_the_event_loop_says_async_with(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def held(wait: float | None = 0) -> bool:
        with lock("video:1", wait=wait) as lease:
            return lease.held

    async def called(waits: Callable[[], object]) -> None:
        waits()

    for wait in (None, 0.1):
        with pytest.raises(SynchronousOnlyOperation, match="async with"):
            asyncio.run(held(wait))
    calls: list[Callable[[], object]] = [
        lambda: locks.acquire("video:1", wait=1),
        lambda: locks.acquire_all(["video:1", "video:2"], wait=1),
        lambda: locks.hold("video:1", LONG, wait=1),
        lambda: cached_once("video:1", dict, LONG),
        lambda: lead("video:1", print),
    ]
    for waits in calls:
        with pytest.raises(SynchronousOnlyOperation, match="async with"):
            asyncio.run(called(waits))
    assert asyncio.run(held())
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    assert asyncio.run(held(1))
