"""Waiting for a lock: in its wait queue, and by polling on caches that have none."""

from __future__ import annotations

import random
import statistics
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
import redis
from django.core.cache import cache

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock.stores import stores
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.inside import ask_again_after, clock, poll_after
from tests.seeds import drawn_seed
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    SOON_SECONDS,
    Meanwhile,
    Traffic,
    all_of,
    elsewhere,
    holder,
    taken,
    waiter,
    waiting,
)
from tests.store_cases import own_prefix
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def own_server(own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
    use_redis(own_redis_server.url)
    return own_redis_server


class TestKeyThatSomebodyDeletes:
    """`cache.clear()`, FLUSHALL, DEL by hand: no waiter is told, but none gives a free lock up."""

    @pytest.mark.parametrize("slots", [1, 2])
    def test_42_a_waiter_gets_the_lock_at_the_end_of_its_wait(
        self, own_server: RedisServer, slots: int
    ) -> None:
        leases = [taken("video", ttl=10 * LONG, slots=slots) for _ in range(slots)]
        waits = Meanwhile(lambda: taken("video", wait=3, slots=slots))
        until(lambda: waiting(leases[-1].name) == 1, "the waiter")
        cache.delete(f"lock:{leases[-1].name}")
        assert waits.result().name == leases[-1].name

    def test_42_a_waiter_names_who_holds_the_lock_by_then(self, own_server: RedisServer) -> None:
        taken("video", ttl=10 * LONG)

        def refused() -> LockNotAcquired:
            with pytest.raises(LockNotAcquired) as raised, lock("video", wait=3):
                pass
            return raised.value

        waits = Meanwhile(refused)
        until(lambda: waiting("video") == 1, "the waiter")
        cache.clear()
        lease = taken("video", ttl=10 * LONG)
        met = waits.result().holder
        assert met is not None
        assert met.token == lease.token


class TestQueue:
    def test_waiters_are_served_in_the_order_in_which_they_came(self) -> None:
        lease = taken("video:1")
        queue = [waiter("video:1", position + 1) for position in range(5)]
        fences = [lease.fence or 0]
        for thread in queue:
            lease.release()
            lease = thread.result()
            assert lease.held
            assert holder("video:1").token == lease.token
            fences.append(lease.fence or 0)
        assert all(earlier < later for earlier, later in pairwise(fences))
        lease.release()
        assert not locks.is_locked("video:1")

    def test_waiter_that_slept_through_its_lease_asks_again(self) -> None:
        lease = taken("video:1")
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=2, wait=None)
            until(lambda: waiting("video:1") == 1)
            agent.stop()
            lease.release()
            until(lambda: not locks.is_locked("video:1"), "the end of the sleeper's lease")
            lease = taken("video:1")
            agent.resume()
            until(lambda: waiting("video:1") == 1, "the sleeper asking again")
            lease.release()
            assert agent.answer()["fence"] > (lease.fence or 0)

    def test_giving_up_in_the_moment_of_the_hand_over_loses_no_lock(self) -> None:
        chance, outcomes = random.Random(drawn_seed()), set()
        for _ in range(60):
            lease = taken("video:1")
            wait = chance.uniform(0.01, 0.02)
            thread = Meanwhile(lambda wait=wait: locks.acquire("video:1", ttl=LONG, wait=wait))  # type: ignore[misc]
            until(lambda: waiting("video:1") == 1 or not thread.is_alive())  # noqa: B023
            time.sleep(chance.uniform(0, 0.02))
            lease.release()
            won = thread.result()
            outcomes.add(won is not None)
            assert won is None or won.release()
            assert not locks.is_locked("video:1"), "nobody holds it, and it is locked"
        assert outcomes == {True, False}, "the moment was never met"


class TestTraffic:
    @pytest.mark.parametrize("local", [True, False], ids=["owner-here", "owner-elsewhere"])
    def test_nothing_is_asked_while_a_lock_is_held(
        self, own_server: RedisServer, local: bool
    ) -> None:
        if local:
            taken("video:1")
        else:
            elsewhere("video:1", LONG)
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda: waiting("video:1") == 1)
            for position in (2, 3):
                waiter("video:1", position)
            traffic = Traffic(own_server)
            time.sleep(1.5)
            assert traffic.commands() == {}
            assert locks.clear("video:1")
            agent.answer()
            for _ in range(2):
                locks.clear("video:1")

    def test_hand_over_is_one_round_trip(self, own_server: RedisServer) -> None:
        taken("video:2").release()  # The server knows the script from now on.
        lease = taken("video:1")
        queue = [waiter("video:1", position + 1) for position in range(3)]
        traffic = Traffic(own_server)
        for thread in queue:
            lease.release()
            lease = thread.result()
        assert traffic.scripts() == 3

    @pytest.mark.parametrize(
        ("pool_class", "connections", "waiters"),
        [("ConnectionPool", 5, 200), ("BlockingConnectionPool", 5, 50), ("ConnectionPool", 1, 30)],
    )
    def test_many_threads_wait_on_one_small_pool(
        self,
        own_redis_server: RedisServer,
        use_redis: UseRedis,
        pool_class: str,
        connections: int,
        waiters: int,
    ) -> None:
        use_redis(
            own_redis_server.url,
            CONNECTION_POOL_CLASS=f"redis.{pool_class}",
            CONNECTION_POOL_KWARGS={"max_connections": connections},
        )
        inside, runs = threading.Lock(), list[int]()
        lease = taken("video:1")

        def run() -> None:
            mine = taken("video:1", wait=None)
            assert inside.acquire(blocking=False), "two at once"
            runs.append(mine.fence or 0)
            inside.release()
            assert mine.release()

        threads = [Meanwhile(run) for _ in range(waiters)]
        until(lambda: waiting("video:1") == waiters, "all waiters", 3 * PATIENCE)
        clients: Any = redis.Redis.from_url(own_redis_server.url).info("clients")
        # One is the subscriber's, and one asks here.
        assert clients["connected_clients"] <= connections + 1 + 1
        lease.release()
        for thread in threads:
            thread.result(3 * PATIENCE)
        assert len(runs) == waiters
        assert runs == sorted(set(runs))


class TestEndOfALease:
    """A dead holder sends nothing."""

    def test_every_waiter_gets_the_lock_though_no_holder_releases(self) -> None:
        began = time.monotonic()
        elsewhere("video:1", 3)
        queue = [waiter("video:1", position + 1, ttl=2, renew=False) for position in range(3)]
        fences = [queue[0].result().fence or 0]
        assert 3 <= time.monotonic() - began < 3 + SOON_SECONDS
        fences += [thread.result().fence or 0 for thread in queue[1:]]
        assert fences == sorted(set(fences))

    def test_queue_outlives_the_sleep_after_a_hand_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next holder's lease may be longer than the queue is kept. The waiter asks again in
        time, which keeps the queue."""
        ask_again_after(monkeypatch, seconds=0.2, of_queue=True)
        lease = taken("video:1", ttl=5)
        first, second = waiter("video:1", 1, ttl=10 * LONG), waiter("video:1", 2)
        lease.release()
        first.result()
        client: Any = stores["default"].client  # type: ignore[attr-defined]
        queue = holder("video:1").key + " queue"
        until(lambda: client.redis.pttl(queue) > 9 * LONG * 1000, "the waiter asking again")
        first.result().release()
        second.result()

    @pytest.mark.parametrize("slots", [1, 2])
    def test_a_waiter_hears_of_a_lease_that_was_made_shorter(
        self, monkeypatch: pytest.MonkeyPatch, slots: int
    ) -> None:
        """Nobody tells it; so it asks again, long before the end of the lease it knew of."""
        ask_again_after(monkeypatch, seconds=0.5)
        leases = [taken("video", ttl=10 * LONG, slots=slots) for _ in range(slots)]
        waits = Meanwhile(lambda: taken("video", wait=None, slots=slots))
        until(lambda: waiting(leases[0].name) == 1, "the waiter")
        assert leases[0].extend(0.2)
        assert waits.result().release()


def test_wait_may_be_longer_than_the_clients_timeout(use_redis: UseRedis) -> None:
    use_redis(SOCKET_TIMEOUT=0.4)
    lease = taken("video:1")
    thread = waiter("video:1", 1)
    # Also in vain, which is no error.
    assert locks.acquire("video:1", wait=1) is None
    assert thread.is_alive()
    lease.release()
    assert thread.result(SOON_SECONDS).held


class TestPlainCache:
    """It hands nothing over: it is asked again and again, and at the lease's end."""

    @pytest.fixture(autouse=True)
    def on_locmem(self, on_redis: None, use_caches: UseCaches) -> None:
        backend = "django.core.cache.backends.locmem.LocMemCache"
        use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}})

    def test_polling_ends_with_the_lease_however_far_it_has_backed_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        poll_after(monkeypatch, seconds=10.0)

        def late(number: int, ttl: float) -> float:
            ends = clock.now() + ttl
            taken(f"video:{number}", ttl=ttl, renew=False)
            taken(f"video:{number}", wait=None)
            return clock.now() - ends

        lateness = all_of(*(lambda n=n: late(n, 0.2 + n / 10) for n in range(9)))
        assert min(lateness) >= 0
        # One that asks in the very moment of the end learns nothing of it.
        assert statistics.median(lateness) < 4, "and not half of a pause, or more"
