"""Waiting for a lock in its queue, and on caches that have none."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
import redis
from django.core.cache import cache

from django_tasklock import Lease, LockNotAcquired, lock, locks
from django_tasklock._engine import waiting as waiting_module
from django_tasklock._values import clock
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from django_tasklock.stores.redis.waiter import RedisWaiter
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, in_child, taken, waiting
from tests.waiting import PATIENCE, until

ELSEWHERE = {"boot": "another-machine"}
SOON_SECONDS = 5.0
"""seconds that no waiter should need who is told, of a lease that lasts much longer"""


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def waiter(name: str, position: int, **options: Any) -> Meanwhile[Lease]:
    """A waiter in the wait queue of a lock, at this position."""
    thread = Meanwhile(lambda: taken(name, **{"wait": None, **options}))
    until(lambda: waiting(name) == position, f"waiter {position}")
    return thread


def elsewhere(name: str, ttl: float) -> str:
    """A lease of a process on another machine, which never releases it."""
    token = new_token()
    record = {**owner_record(), **ELSEWHERE}
    assert isinstance(stores["default"].acquire(name, token, ttl, record), Grant)
    return token


class TestKeyThatSomebodyDeletes:
    """`cache.clear()`, FLUSHALL, DEL by hand: no waiter is told, but none gives a free lock up."""

    @pytest.mark.parametrize("slots", [1, 2])
    def test_42_a_waiter_gets_the_lock_at_the_end_of_its_wait(
        self, own_redis_server: RedisServer, use_redis: UseRedis, slots: int
    ) -> None:
        use_redis(own_redis_server.url)
        leases = [taken("video", ttl=10 * LONG, slots=slots) for _ in range(slots)]
        waits = Meanwhile(lambda: taken("video", wait=3, slots=slots))
        until(lambda: waiting(leases[-1].name) == 1, "the waiter")
        cache.delete(f"lock:{leases[-1].name}")
        assert waits.result().name == leases[-1].name

    def test_42_a_waiter_names_who_holds_the_lock_by_then(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
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


class TestLine:
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

    def test_processes_share_one_wait_queue(self) -> None:
        lease = taken("video:1")
        with Agent() as first, Agent() as second:
            for position, agent in enumerate((first, second), 1):
                agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
                until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
            lease.release()
            assert first.answer()["token"] == holder("video:1").token
            assert waiting("video:1") == 1
            assert first.ask("release") is True
            assert second.answer()["token"] == holder("video:1").token

    def test_clear_hands_over_to_the_next_waiter(self) -> None:
        lost = taken("video:1")
        thread = waiter("video:1", 1)
        assert locks.clear("video:1") is True
        assert thread.result(SOON_SECONDS).held
        assert lost.release() is False
        assert holder("video:1").token == thread.result().token

    def test_waiters_lease_counts_from_the_hand_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asking: list[float] = []
        ask = RedisWaiter.ask

        def timed(self: RedisWaiter) -> Grant | Refusal:
            began = clock.now()
            answer = ask(self)
            asking.append(clock.now() - began)
            return answer

        monkeypatch.setattr(RedisWaiter, "ask", timed)
        lease = taken("video:1")
        thread = waiter("video:1", 1, ttl=5)
        time.sleep(0.5)
        before = clock.now()
        lease.release()
        # All that is known is how long ago the server read the question, by its own clock.
        assert before - asking[-1] <= thread.result()._deadline - 5 + 0.001
        assert 0 < thread.result().remaining <= 5

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

    def test_who_gives_up_is_not_waited_for(self) -> None:
        lease = taken("video:1")
        began = time.monotonic()
        assert locks.acquire("video:1", wait=0.2) is None
        assert time.monotonic() - began >= 0.2
        assert waiting("video:1") == 0
        lease.release()
        assert not locks.is_locked("video:1")

    def test_giving_up_in_the_moment_of_the_hand_over_loses_no_lock(self) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance, outcomes = random.Random(seed), set()
        for _ in range(60):
            lease = taken("video:1")
            wait = chance.uniform(0.01, 0.02)
            thread = Meanwhile(lambda wait=wait: locks.acquire("video:1", ttl=LONG, wait=wait))  # type: ignore[misc]
            until(lambda: waiting("video:1") == 1 or not thread.is_alive())  # noqa: B023
            time.sleep(chance.uniform(0, 0.02))
            lease.release()
            won = thread.result()
            outcomes.add(won is not None)
            if won is not None:
                assert won.held
                assert won.release()
            assert not locks.is_locked("video:1"), "nobody holds it, and it is locked"
        assert outcomes == {True, False}, "the moment was never met"

    def test_others_get_their_messages_after_the_reader_has_left(self) -> None:
        """Nobody wakes them but the one who leaves: the holder cannot be watched from here."""
        elsewhere("video:1", LONG)
        first = Meanwhile(lambda: locks.acquire("video:1", wait=4.0))
        until(lambda: waiting("video:1") == 1)
        second, third = waiter("video:1", 2), waiter("video:1", 3)
        assert first.result() is None
        for thread in (second, third):
            locks.clear("video:1")
            assert thread.result(SOON_SECONDS).held

    def test_channels_are_used_again(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url)
        for _ in range(30):
            lease = taken("video:1")
            thread = waiter("video:1", 1)
            lease.release()
            thread.result().release()
        assert len(redis.Redis.from_url(own_redis_server.url).pubsub_channels()) == 1


class TestTraffic:
    @pytest.fixture(autouse=True)
    def own_server(self, use_redis: UseRedis, own_redis_server: RedisServer) -> None:
        use_redis(own_redis_server.url)

    @pytest.mark.parametrize("local", [True, False], ids=["owner-here", "owner-elsewhere"])
    def test_nothing_is_asked_while_a_lock_is_held(
        self, own_redis_server: RedisServer, local: bool
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
            traffic = Traffic(own_redis_server)
            time.sleep(1.5)
            assert traffic.commands() == {}
            assert locks.clear("video:1")
            agent.answer()
            for _ in range(2):
                locks.clear("video:1")

    def test_hand_over_is_one_round_trip(self, own_redis_server: RedisServer) -> None:
        taken("video:2").release()  # The server knows the script from now on.
        lease = taken("video:1")
        queue = [waiter("video:1", position + 1) for position in range(3)]
        traffic = Traffic(own_redis_server)
        for thread in queue:
            lease.release()
            lease = thread.result()
        assert traffic.scripts() == 3

    def test_a_second_wait_joins_the_queue_with_its_first_question(
        self, own_redis_server: RedisServer
    ) -> None:
        """It asks, asks once more at its end, and leaves: the first time listening had to begin in
        between."""
        taken("video:1")
        # Long enough for the subscription on a busy machine, and so for the scripts to be known.
        assert locks.acquire("video:1", wait=5) is None
        for _ in range(2):
            traffic = Traffic(own_redis_server)
            assert locks.acquire("video:1", wait=0.3) is None
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

    def test_waiter_wakes_when_the_lease_ends(self) -> None:
        began = time.monotonic()
        elsewhere("video:1", 4)
        thread = waiter("video:1", 1)
        thread.result()
        assert 4 <= time.monotonic() - began < 4 + SOON_SECONDS

    def test_waiter_knows_the_end_of_the_lease_of_the_next_holder(self) -> None:
        """The first holder's lease was long, the dead second one's is short."""
        lease = taken("video:1")
        dead = stores["default"].waiter(
            "video:1", new_token(), 0.6, {**owner_record(), **ELSEWHERE}
        )
        assert dead is not None
        assert isinstance(dead.ask(), Refusal)
        thread = waiter("video:1", 2)
        began = time.monotonic()
        lease.release()
        thread.result(LONG / 2)
        assert 0.6 <= time.monotonic() - began < 0.6 + SOON_SECONDS

    def test_every_waiter_gets_the_lock_though_no_holder_releases(self) -> None:
        elsewhere("video:1", 3)
        queue = [waiter("video:1", position + 1, ttl=2, renew=False) for position in range(3)]
        fences = [thread.result().fence or 0 for thread in queue]
        assert fences == sorted(set(fences))

    def test_queue_outlives_the_longest_sleep_of_its_waiters(self) -> None:
        """One who came later and knows of a shorter lease does not shorten it."""
        lease = taken("video:1", ttl=LONG)
        thread = waiter("video:1", 1)
        assert lease.extend(5)
        assert locks.acquire("video:1", wait=0.05) is None
        client: Any = stores["default"].client  # type: ignore[attr-defined]
        left = client.redis.pttl(holder("video:1").key + " queue")
        assert left > LONG * 1000 - 10_000
        lease.release()
        thread.result()

    def test_queue_outlives_the_sleep_after_a_hand_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next holder's lease may be longer than the queue is kept. The waiter asks again in
        time, which keeps the queue."""
        monkeypatch.setattr(waiting_module, "QUEUE_RETRY_SECONDS", 0.2)
        lease = taken("video:1", ttl=5)
        first, second = waiter("video:1", 1, ttl=10 * LONG), waiter("video:1", 2)
        lease.release()
        first.result()
        client: Any = stores["default"].client  # type: ignore[attr-defined]
        queue = holder("video:1").key + " queue"
        until(lambda: client.redis.pttl(queue) > 9 * LONG * 1000, "the waiter asking again")
        first.result().release()
        second.result()


class TestSocketTimeout:
    def test_wait_may_be_longer_than_the_clients_timeout(self, use_redis: UseRedis) -> None:
        use_redis(SOCKET_TIMEOUT=0.4)
        lease = taken("video:1")
        thread = waiter("video:1", 1)
        time.sleep(1)
        assert thread.is_alive()
        lease.release()
        assert thread.result(SOON_SECONDS).held

    def test_waiting_in_vain_is_no_error(self, use_redis: UseRedis) -> None:
        use_redis(SOCKET_TIMEOUT=0.4)
        taken("video:1")
        began = time.monotonic()
        assert locks.acquire("video:1", wait=1) is None
        assert time.monotonic() - began >= 1


class TestFork:
    def test_child_waits_with_an_ear_of_its_own(self) -> None:
        lease = taken("video:1")
        thread = waiter("video:1", 1)
        assert in_child(lambda: locks.acquire("video:1", wait=0.2)) is None
        lease.release()
        assert thread.result(SOON_SECONDS).held
