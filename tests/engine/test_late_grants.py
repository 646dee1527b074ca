"""A store whose answers take longer than the leases last: no work begins without the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, lock, locks
from tests.conftest import UseRedis
from tests.mailroom import mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.waiting import until

TTL_SECONDS = 0.05


@pytest.fixture(autouse=True)
def way(cut_proxy: CutProxy, use_redis: UseRedis) -> CutProxy:
    """What is between this process and its store, whose answers come too late."""
    use_redis(cut_proxy.url)
    locks.is_locked("job:1")
    cut_proxy.latency = TTL_SECONDS
    return cut_proxy


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("wait", [0, None])
def test_the_call_raises(wait: float | None, slots: int) -> None:
    with pytest.raises(StoreUnavailable, match=r"later than a lease of 0\.05 s lasts"):
        locks.acquire("job:1", ttl=TTL_SECONDS, wait=wait, slots=slots)
    names = ("job:1", "job:1#1", "job:1#2")
    until(lambda: not any(map(locks.is_locked, names)), "the end of what was granted")


@pytest.mark.parametrize("renew", [False, True])
def test_a_block_does_not_begin(renew: bool) -> None:
    begun: list[bool] = []
    block = lock("job:1", ttl=TTL_SECONDS, renew=renew)

    def work() -> None:
        with block:
            begun.append(True)

    both: list[Callable[[], None]] = [work, block(lambda: begun.append(True))]
    for one in both:
        with pytest.raises(StoreUnavailable):
            one()
    assert begun == []


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("acks_late", [False, True])
def test_a_task_goes_back_to_the_queue(
    redis_server: RedisServer, acks_late: bool, slots: int
) -> None:
    held: list[bool] = []

    def work(self: Any, job: Any) -> None:
        held.append(self.lease.held)

    with mailroom(redis_server.url) as room:
        room.task(work, acks_late=acks_late, lock_ttl=TTL_SECONDS, lock_slots=slots).delay(1)
        assert room.deliver(room.take())[0] == "IGNORED"
        assert len(room.waiting()) == 1
    assert held == []
