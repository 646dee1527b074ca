"""What people try who know other locks: an error at once, with the mend in it; or it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from django.core.exceptions import SynchronousOnlyOperation

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from django_tasklock.celery import LockedTask
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.waiting import until

OWN = r"by this very thread; reentrant=True shares it"


pytestmark = pytest.mark.usefixtures("on_redis")


@lock("video:{video_id}", wait=None)
def work(video_id: int) -> str:
    return "done"


def enter(name: str, wait: float | None = None) -> None:
    with lock(name, wait=wait):
        pytest.fail("the block ran")  # pragma: no cover


class TestOwnLock:
    """Whoever waits for a lock of its own thread or task would wait for itself."""

    @pytest.mark.parametrize("wait", [0, LONG, None])
    def test_a_block_inside_its_own_block_is_told_so_at_once(self, wait: float | None) -> None:
        with lock("video:1") as outer:
            with pytest.raises(LockNotAcquired, match=OWN) as refused:
                enter("video:1", wait)
            assert refused.value.holder is not None
            assert refused.value.holder.token == outer.token
            assert waiting("video:1") == 0
            assert outer.held

    def test_a_decorated_function_that_calls_itself_or_another_is_told_so(self) -> None:
        @lock("video:{video_id}")
        def again(video_id: int) -> str:
            return work(video_id)

        with pytest.raises(LockNotAcquired, match=OWN):
            again(1)
        assert not locks.is_locked("video:1")
        assert work(1) == "done"

    def test_one_of_several_names_is_told_so(self) -> None:
        with lock(["seat:1", "seat:2"]), pytest.raises(LockNotAcquired, match=OWN):
            enter("seat:2")
        with (
            lock("seat:2"),
            pytest.raises(LockNotAcquired, match=OWN),
            lock(["seat:1", "seat:2"], wait=None),
        ):
            pytest.fail("the block ran")  # pragma: no cover

    def test_a_task_that_takes_its_own_lock_is_told_so(self) -> None:
        app: Any = Celery("mistakes", set_as_current=False)

        @app.task(base=LockedTask, lock_name="video:{video_id}", shared=False)  # type: ignore[untyped-decorator]
        def body(video_id: int) -> None:
            enter(f"video:{video_id}")

        with pytest.raises(LockNotAcquired, match=OWN):
            body(1)
        assert not locks.is_locked("video:1")

    def test_a_task_of_a_loop_is_told_so_and_another_one_waits(self) -> None:
        async def wait_inside(name: str) -> None:
            async with lock(name, wait=None):
                pytest.fail("the block ran")  # pragma: no cover

        async def main() -> bool:
            async with lock("video:1", ttl=LONG):
                with pytest.raises(LockNotAcquired, match=OWN):
                    await wait_inside("video:1")
                other = asyncio.create_task(locks.aacquire("video:1", ttl=LONG, wait=LONG))
                await asyncio.to_thread(until, lambda: locks.waiters("video:1"))
            return await other is not None

        assert asyncio.run(main())

    def test_another_thread_waits(self) -> None:
        with lock("video:1", ttl=LONG):
            other = Meanwhile(lambda: taken("video:1", wait=LONG))
            until(lambda: waiting("video:1") == 1)
        assert other.result().release()

    def test_a_lease_that_is_no_blocks_is_waited_for(self) -> None:
        """Another thread may release it."""
        lease = taken("video:1")
        threading.Timer(0.2, lease.release).start()
        assert work(1) == "done"
        lease = taken("video:1")
        with pytest.raises(LockNotAcquired, match=r"^(?!.*this very thread)"):
            enter("video:1", 0)
        assert lease.release()


class TestOtherLocks:
    """How locks of other libraries are used."""

    def test_a_block_with_a_field_in_its_name_has_forgotten_its_f(self) -> None:
        order_id = 7
        for name in ("order:{order_id}", "order:{order.id}", "{self.pk!r}:{n:>3}"):
            with pytest.raises(ValueError, match=r'f-string|forgot.* f\b|f"'):
                enter(name)
        with pytest.raises(ValueError, match="order_id"), lock(["a", "order:{order_id}"]):
            pytest.fail("the block ran")  # pragma: no cover
        with lock(f"order:{order_id}"), lock("json:{}"):
            assert locks.is_locked("order:7")

    def test_a_lock_is_no_condition(self) -> None:
        with pytest.raises(TypeError, match=r"locks\.acquire"):
            assert lock("a")

    @pytest.mark.parametrize("name", ["acquire", "release", "locked", "extend"])
    def test_a_lock_has_no_verbs(self, name: str) -> None:
        with pytest.raises(AttributeError, match=rf"{name}.*(locks\.|lease)"):
            getattr(lock("a"), name)
        assert not hasattr(lock("a"), "something")

    @pytest.mark.parametrize(
        ("wrong", "meant"),
        [("timeout", "(ttl|wait)="), ("blocking_timeout", "wait="), ("blocking", "wait="),
         ("expire", "ttl="), ("colour", "colour")],
    )  # fmt: skip
    def test_a_wrong_option_names_the_one_that_is_meant(self, wrong: str, meant: str) -> None:
        calls: list[Callable[..., object]] = [lock, locks.acquire]
        for call in calls:
            with pytest.raises(TypeError, match=meant):
                call("a", **{wrong: 5})
        assert not locks.is_locked("a")

    def test_a_lease_is_released_at_the_end_of_its_block(self) -> None:
        with taken("a") as lease:
            lease.assert_held()
        assert not lease.held
        assert not locks.is_locked("a")
        with taken("a") as lease:
            assert lease.release(), "which is no loss"

    def test_a_lost_lease_is_said_at_the_end_of_its_block(self) -> None:
        with pytest.raises(LeaseLost), taken("a"):
            locks.clear("a")
        boom = KeyError("boom")
        with pytest.raises(KeyError, match="boom"), taken("a"):
            raise boom
        assert not locks.is_locked("a")

    def test_a_block_of_no_lease_is_pythons_own_error(self) -> None:
        taken("a")
        none: Any = locks.acquire("a")
        with pytest.raises((TypeError, AttributeError), match=r"context manager|__enter__"), none:
            pytest.fail("the block ran")  # pragma: no cover


def test_a_block_that_would_block_the_event_loop_says_async_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(wait: float | None = 0) -> bool:
        with lock("video:1", wait=wait) as lease:
            return lease.held

    for wait in (None, 0.1):
        with pytest.raises(SynchronousOnlyOperation, match="async with"):
            asyncio.run(work(wait))
    assert asyncio.run(work())
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    assert asyncio.run(work(1))
