"""Waiting for a lock: in its wait queue, and by polling on caches that have none."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import pytest
import redis
from django.core.cache import cache

from django_tasklock import LockNotAcquired, lock, locks
from tests import steps
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.inside import ask_again_after, clock, poll_after
from tests.servers import RedisServer
from tests.steps import LONG, SOON_SECONDS, Meanwhile, Traffic, holder, taken, waiter, waiting
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def server(own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
    use_redis(own_redis_server.url)
    return own_redis_server


class TestQueue:
    def test_waiters_are_served_in_the_order_in_which_they_came(self) -> None:
        # Given five who came to the wait queue one after the other
        lease = taken("video:1")
        queue = [waiter("video:1", position + 1) for position in range(5)]
        fences = [lease.fence or 0]
        # I expect each release to hand the lock to the next
        for thread in queue:
            lease.release()
            lease = thread.result()
            assert (lease.held, lease.token) == (True, holder("video:1").token)
            fences.append(lease.fence or 0)
        assert fences == sorted(set(fences))
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

    def test_a_waiter_that_slept_for_most_of_its_lease_has_a_whole_one(self) -> None:
        lease = taken("video:1")
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=4, wait=None)
            until(lambda: waiting("video:1") == 1)
            agent.stop()
            lease.release()
            until(lambda: (holder("video:1").ttl or 0) < 1.5, "most of the sleeper's lease")
            agent.resume()
            agent.answer()
            assert (holder("video:1").ttl or 0) > 2


class TestKeyThatSomebodyDeletes:
    """`cache.clear()`, FLUSHALL, DEL by hand: no waiter is told, but none gives a free lock up."""

    @pytest.mark.parametrize("slots", [1, 2])
    def test_42_a_waiter_gets_the_lock_at_the_end_of_its_wait(self, slots: int) -> None:
        leases = [taken("video", ttl=10 * LONG, slots=slots) for _ in range(slots)]
        waits = Meanwhile(lambda: taken("video", wait=2, slots=slots))
        until(lambda: waiting(leases[-1].name) == 1, "the waiter")
        cache.delete(f"lock:{leases[-1].name}")
        assert waits.result().name == leases[-1].name

    def test_42_a_waiter_names_who_holds_the_lock_by_then(self) -> None:
        taken("video", ttl=10 * LONG)

        def wait() -> Any:
            with pytest.raises(LockNotAcquired) as raised:
                lock("video", wait=2).__enter__()
            return raised.value.holder

        waits = Meanwhile(wait)
        until(lambda: waiting("video") == 1, "the waiter")
        cache.clear()
        assert taken("video", ttl=10 * LONG).token == waits.result().token


class TestTraffic:
    @pytest.mark.parametrize("take", [steps.taken, steps.elsewhere])
    def test_nothing_is_asked_while_a_lock_is_held(self, server: RedisServer, take: Any) -> None:
        take("video:1", ttl=LONG)
        queue = [waiter("video:1", position + 1, renew=False) for position in range(3)]
        traffic = Traffic(server)
        time.sleep(1.5)
        assert traffic.commands() == {}
        for thread in queue:
            assert locks.clear("video:1")
            thread.result()

    def test_hand_over_is_one_round_trip(self, server: RedisServer) -> None:
        taken("video:2").release()  # The server knows the script from now on.
        lease = taken("video:1")
        queue = [waiter("video:1", position + 1) for position in range(3)]
        traffic = Traffic(server)
        for thread in queue:
            lease.release()
            lease = thread.result()
        assert traffic.scripts() == 3

    def test_only_a_process_that_listens_joins_the_queue_with_its_first_question(
        self, server: RedisServer
    ) -> None:
        lease, traffic = taken("video:1"), Traffic(server)
        for questions in (2, 1):
            traffic.restart()
            thread = Meanwhile(lambda: taken("video:1", wait=None))
            until(lambda: locks.waiters("video:1"), "the waiter")  # By a command, and no script.
            assert traffic.scripts() == questions
            lease.release()
            lease = thread.result()

    @pytest.mark.parametrize(
        ("pool", "size", "waiters"),
        [("ConnectionPool", 5, 200), ("BlockingConnectionPool", 5, 50), ("ConnectionPool", 1, 30)],
    )
    def test_many_threads_wait_on_one_small_pool(
        self, server: RedisServer, use_redis: UseRedis, pool: str, size: int, waiters: int
    ) -> None:
        options: dict[str, Any] = {"CONNECTION_POOL_CLASS": f"redis.{pool}"}
        use_redis(server.url, CONNECTION_POOL_KWARGS={"max_connections": size}, **options)
        inside, runs, lease = threading.Lock(), list[int](), taken("video:1")

        def run() -> None:
            mine = taken("video:1", wait=None)
            assert inside.acquire(blocking=False), "two at once"
            runs.append(mine.fence or 0)
            inside.release()
            assert mine.release()

        threads = [Meanwhile(run) for _ in range(waiters)]
        until(lambda: waiting("video:1") == waiters, "all waiters", 3 * PATIENCE)
        clients: Any = redis.Redis.from_url(server.url).info("clients")
        assert clients["connected_clients"] <= size + 10, "nine that listen, and ours here"
        lease.release()
        for thread in threads:
            thread.result(3 * PATIENCE)
        assert (len(runs), runs) == (waiters, sorted(set(runs)))

    def test_wait_may_be_longer_than_the_clients_timeout(self, use_redis: UseRedis) -> None:
        use_redis(SOCKET_TIMEOUT=0.4)
        lease, thread = taken("video:1"), waiter("video:1", 1)
        assert locks.acquire("video:1", wait=1) is None, "in vain, which is no error"
        lease.release()
        assert thread.result(SOON_SECONDS).held


class TestEndOfALease:
    def test_every_waiter_gets_the_lock_though_no_holder_releases(self) -> None:
        began = time.monotonic()
        steps.elsewhere("video:1", 2)
        queue = [waiter("video:1", position + 1, ttl=1, renew=False) for position in range(3)]
        fences = [queue[0].result().fence or 0]
        assert 2 <= time.monotonic() - began < 2 + SOON_SECONDS
        fences += [thread.result().fence or 0 for thread in queue[1:]]
        assert fences == sorted(set(fences))

    @pytest.mark.parametrize("slots", [1, 2])
    def test_a_shorter_lease_is_noticed(self, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
        """Nobody tells it; so it asks again, long before the end of the lease it knew of."""
        ask_again_after(monkeypatch, seconds=0.5)
        leases = [taken("video", ttl=10 * LONG, slots=slots) for _ in range(slots)]
        waits = Meanwhile(lambda: taken("video", wait=None, slots=slots))
        until(lambda: waiting(leases[0].name) == 1, "the waiter")
        assert leases[0].extend(0.2)
        assert waits.result().release()

    def test_polling_ends_in_time(self, on_locmem: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a plain cache, however far it has backed off."""
        poll_after(monkeypatch, seconds=10.0)

        def late(number: int) -> float:
            ttl = 0.2 + number / 10
            ends = clock.now() + ttl
            taken(f"video:{number}", ttl=ttl, renew=False)
            taken(f"video:{number}", wait=None)
            return clock.now() - ends

        lateness = steps.all_of(*(lambda n=n: late(n) for n in range(9)))
        assert min(lateness) >= 0
        # One that asks in the very moment of the end learns nothing of it.
        assert statistics.median(lateness) < 4, "and not half of a pause, or more"
