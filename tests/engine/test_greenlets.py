"""Greenlets, of gevent and eventlet: what is of one is not of the others, and none is starved."""

from __future__ import annotations

import sys

import pytest

from tests.greenlets import BUSY, LIBRARIES, run_in_greenlets

pytestmark = [pytest.mark.usefixtures("on_redis"), pytest.mark.parametrize("library", LIBRARIES)]

SHARED = """
from django_tasklock import LockNotAcquired, lock, locks

def again():
    return lock("video:1", ttl=60, reentrant=True)

# Given a block of one greenlet
def refused():
    try:
        with again(), again():
            return False
    except LockNotAcquired:
        return True

# I expect it to enter again, and another greenlet to be refused, which is not another thread
with again():
    assert not refused()
    assert join(spawn(refused)), "shared with another"
assert not join(spawn(refused))

print(locks.count())
"""

RESTED = """
import logging
from django_tasklock import locks
from pytest import MonkeyPatch
from tests.inside import look_often

said = []
logging.getLogger("django_tasklock").addFilter(lambda record: said.append(record.getMessage()))
look_often(MonkeyPatch(), 0.01)
for _ in range(2):
    lease = locks.acquire("video:1", ttl=3, renew=True)
    sleep(1.5)
    assert 1.6 < lease.remaining
    lease.release()
    sleep(1)
print(*said)
"""

ON_A_LOOP = """
import asyncio
from django_tasklock import lock, locks

async def main():
    async with lock("video:1", ttl=60, wait=5):
        waiter = asyncio.ensure_future(locks.aacquire("video:1", ttl=60, wait=30))
        while not await asyncio.to_thread(locks.waiters, "video:1"):
            await asyncio.sleep(0.01)
    lease = await waiter
    print(await lease.arelease())

asyncio.run(main())
"""


def test_greenlets_do_not_share_a_reentrant_lock(library: str) -> None:
    assert run_in_greenlets(SHARED, library) == ["0"]


def test_greenlet_that_computes_keeps_its_lease(library: str) -> None:
    assert run_in_greenlets(BUSY, library) == ["waited"]


def test_after_a_rest_leases_are_renewed_on_the_same_connection(library: str) -> None:
    """It belongs to the thread that opened it."""
    assert run_in_greenlets(RESTED, library) == []


def test_calls_that_are_awaited_may_wait(library: str) -> None:
    """They are made in greenlets of the loop's own thread."""
    if library == "eventlet":
        pytest.skip("asyncio's loop does not run under it")
    if sys.version_info >= (3, 14):
        pytest.skip("gevent 26.9 does not wake asyncio's loop there, after time.sleep in a thread")
    assert run_in_greenlets(ON_A_LOOP, library) == ["True"]
