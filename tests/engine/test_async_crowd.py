"""Many tasks that wait on one event loop, also while they are cancelled at random."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from django_tasklock import lock, locks
from tests.conftest import UseRedis
from tests.steps import LONG, taken, waiting
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.nightly

NAMES = [f"video:{number}" for number in range(10)]
THREADS = 12
"""those of the two lanes, the listener, the watch of owners, the renewal, and a few more"""


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


async def longest_stall(stop: asyncio.Event) -> float:
    """The longest time for which the loop ran nothing of this."""
    longest = 0.0
    while not stop.is_set():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - before - 0.001)
    return longest


async def queue_is_full(name: str) -> None:
    for _ in range(int(PATIENCE * 60)):
        if len(await locks.awaiters(name)) == 100:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the queue of {name} has not 100 waiters")


def test_a_thousand_tasks_wait_for_ten_locks(
    record_property: Callable[[str, object], None],
) -> None:
    inside: Counter[str] = Counter()
    done: Counter[str] = Counter()
    threads_before = threading.active_count()

    async def one(name: str) -> None:
        async with lock(name, ttl=LONG, wait=None):
            inside[name] += 1
            assert inside[name] == 1
            await asyncio.sleep(0)
            inside[name] -= 1
            done[name] += 1

    async def work() -> tuple[int, float]:
        stop = asyncio.Event()
        held = [await locks.aacquire(name, ttl=10 * LONG) for name in NAMES]
        tasks = [asyncio.create_task(one(NAMES[number % 10])) for number in range(1000)]
        stall = asyncio.create_task(longest_stall(stop))
        await asyncio.gather(*map(queue_is_full, NAMES))
        threads = threading.active_count() - threads_before
        for lease in held:
            assert lease is not None
            assert await lease.arelease()
        await asyncio.gather(*tasks)
        stop.set()
        return threads, await stall

    threads, stall = asyncio.run(work())
    print(f"threads: {threads}, the loop's longest stall: {stall * 1000:.0f} ms")
    record_property("stall", stall)
    assert threads <= THREADS
    assert done == dict.fromkeys(NAMES, 100)
    assert locks.count() == 0


def test_tasks_that_are_cancelled_at_random_leave_nothing() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    chance = Random(seed)
    inside: Counter[str] = Counter()
    done: list[int] = []

    async def one(number: int) -> None:
        names = chance.sample(NAMES[:4], chance.randint(1, 2))
        async with lock(names if len(names) > 1 else names[0], ttl=LONG, wait=None):
            for name in names:
                inside[name] += 1
            try:
                assert all(inside[name] == 1 for name in names)
                await asyncio.sleep(chance.uniform(0, 0.003))
            finally:
                for name in names:
                    inside[name] -= 1
        done.append(number)

    async def work() -> int:
        tasks = []
        for number in range(300):
            tasks.append(asyncio.create_task(one(number)))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 0.01))
            if chance.random() < 0.6:
                victim = chance.choice(tasks)
                victim.cancel()
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
                    victim.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [each for each in ended if isinstance(each, asyncio.CancelledError)]
        assert [each for each in ended if each is not None and each not in cancelled] == []
        return len(cancelled)

    cancelled = asyncio.run(work())
    assert cancelled
    assert len(done) + cancelled == 300
    # I expect every lock to be free soon, without a waiter, and to be had again
    until(lambda: locks.count() == 0, f"the end of all locks, seed {seed}")
    for name in NAMES[:4]:
        held = taken(name)
        assert waiting(name) == 0
        assert held.release()
