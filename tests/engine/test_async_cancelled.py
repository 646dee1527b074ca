"""A task that is cancelled while its step is made: it waits for that step alone."""

from __future__ import annotations

import asyncio

import pytest

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock._engine.aio import driving
from tests.conftest import UseRedis
from tests.proxy import CutProxy
from tests.steps import taken
from tests.waiting import PATIENCE


def test_a_cancelled_task_does_not_wait_for_what_is_undone_already(
    cut_proxy: CutProxy, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled while its step is made, and that step is refused."""
    monkeypatch.setattr(driving, "UNDO_SECONDS", 2 * PATIENCE)
    use_redis(cut_proxy.url)
    taken("video:1")
    locks.is_locked("video:1")

    async def enter() -> None:
        async with lock("video:1"):
            pass

    async def main() -> None:
        with pytest.raises(LockNotAcquired):
            await enter()
        cut_proxy.latency = 0.1
        task = asyncio.ensure_future(enter())
        await asyncio.sleep(0.05)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=PATIENCE)
        assert ended
        assert task.cancelled()

    asyncio.run(main())
