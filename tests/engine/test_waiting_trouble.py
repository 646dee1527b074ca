"""Waiting while things break: waiters die, connections are cut, callers are interrupted."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import redis
from billiard.exceptions import SoftTimeLimitExceeded

from django_tasklock import Lease, LockService, StoreUnavailable, locks
from django_tasklock._engine import permit_queue as permit_queue_module
from django_tasklock._engine import waiting as waiting_module
from django_tasklock.stores import stores
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.interruptions import in_finalizer
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, members, taken, unheard, waiting
from tests.store_cases import redis_cache
from tests.waiting import until

SOON_SECONDS = 5.0
"""seconds that no waiter should need who is told, of a lease that lasts much longer"""


def waiter(name: str, position: int) -> Meanwhile[Lease]:
    thread = Meanwhile(lambda: taken(name, wait=None))
    until(lambda: waiting(name) == position, f"waiter {position}")
    return thread


class TestDeath:
    @pytest.fixture
    def server(self, own_redis_server: RedisServer, use_redis: UseRedis) -> Any:
        use_redis(own_redis_server.url, tasklock={"OPTIONS": {"TAKEOVER": False}})
        return redis.Redis.from_url(own_redis_server.url)

    @pytest.mark.parametrize("monitored", [False, True], ids=["", "under-a-monitor"])
    def test_dead_waiters_are_passed_over(self, server: Any, monitored: bool) -> None:
        """Also where a monitor listens to every channel there is: it is no waiter."""
        if monitored:
            monitor = server.pubsub()
            monitor.psubscribe("*")
        lease = taken("video:1")
        with Agent() as first, Agent() as second:
            for position, agent in enumerate((first, second), 1):
                agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
                until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
            thread = waiter("video:1", 3)
            for agent in (first, second):
                agent.kill()
            until(lambda: len(server.pubsub_channels()) == 1, "the server noticing the deaths")
        lease.release()
        assert thread.result(SOON_SECONDS).held
        if monitored:
            monitor.close()

    def test_lock_whose_waiters_are_all_dead_is_not_locked(self, server: Any) -> None:
        lease = taken("video:1")
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda: waiting("video:1") == 1)
            agent.kill()
            until(lambda: not server.pubsub_channels(), "the server noticing the death")
        assert lease.release()
        assert not locks.is_locked("video:1")

    def test_waiter_that_dies_with_the_lock_is_noticed_by_the_next(
        self, use_redis: UseRedis
    ) -> None:
        """Whoever waits knows whom the lock was handed to, and watches that process."""
        use_redis()
        lease = taken("video:1")
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda: waiting("video:1") == 1)
            thread = waiter("video:1", 2)
            lease.release()
            assert agent.answer()["token"] == holder("video:1").token
            agent.kill()
        assert thread.result(SOON_SECONDS).held

    @pytest.fixture
    def watchful(self, use_redis: UseRedis) -> None:
        use_redis()

    def test_a_waiter_that_becomes_the_next_knows_the_holder(self, watchful: None) -> None:
        """Those who were told of it have given up since."""
        lease = taken("video:1")
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=LONG, wait=LONG)
            until(lambda: waiting("video:1") == 1)
            others = [Meanwhile(lambda: locks.acquire("video:1", wait=6)) for _ in range(3)]
            until(lambda: waiting("video:1") == 4)
            thread = waiter("video:1", 5)
            lease.release()
            agent.answer()
            assert [other.result() for other in others] == [None] * 3
            assert thread.is_alive()
            agent.kill()
        assert thread.result(SOON_SECONDS).held

    def test_who_comes_after_the_dead_knows_the_holder(self, watchful: None) -> None:
        """They died in the queue: none of them gets a message of the hand-over."""
        lease = taken("video:1")
        with contextlib.ExitStack() as stack:
            agents = [stack.enter_context(Agent()) for _ in range(4)]
            for position, agent in enumerate(agents, 1):
                agent.tell("acquire", name="video:1", ttl=LONG, wait=LONG)
                until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
            thread = waiter("video:1", 5)
            for agent in agents[1:]:
                agent.kill()
            store: Any = stores["default"]
            listening = store.keyspace.index.decode() + ":*"
            until(lambda: len(store.client.redis.pubsub_channels(listening)) == 2)
            lease.release()
            agents[0].answer()
            agents[0].kill()
            assert thread.result(SOON_SECONDS).held


class TestFork:
    @pytest.mark.slow
    def test_child_that_lives_on_does_not_listen_for_its_dead_parent(
        self, own_redis_server: RedisServer, use_redis: UseRedis
    ) -> None:
        use_redis(own_redis_server.url, tasklock={"OPTIONS": {"TAKEOVER": False}})
        server = redis.Redis.from_url(own_redis_server.url)
        lease = taken("video:1")
        with Agent() as agent:
            # Given a process of which one thread waits, and that forks a child meanwhile
            agent.ask("wait_meanwhile", name="video:1", ttl=LONG, wait=None)
            until(lambda: waiting("video:1") == 1)
            child = agent.ask("fork")
            try:
                # When it dies, and the child does not
                agent.kill()
                until(
                    lambda: not server.pubsub_channels(),
                    "the server noticing the death",
                    SOON_SECONDS,
                )
                lease.release()
                assert not locks.is_locked("video:1")
            finally:
                os.kill(child, signal.SIGKILL)


class TestCut:
    @pytest.fixture
    def proxy(
        self, cut_proxy: CutProxy, redis_server: RedisServer, use_caches: UseCaches
    ) -> CutProxy:
        """The way of the store "default"; "direct" is the same one by another way."""
        through = redis_cache(cut_proxy.url)
        use_caches(
            {"default": through, "direct": through | {"LOCATION": redis_server.url}},
            {"default": {}, "direct": {"CACHE": "direct"}},
        )
        return cut_proxy

    @pytest.fixture
    def lease(self, proxy: CutProxy) -> Lease:
        """A lease on video:1 whose holder is not cut off."""
        lease = locks.using("direct").acquire("video:1", ttl=LONG)
        assert lease is not None
        return lease

    def test_waiter_asks_again_after_its_connection_was_cut(
        self, proxy: CutProxy, lease: Lease
    ) -> None:
        first, second = waiter("video:1", 1), waiter("video:1", 2)
        for _ in range(3):
            before = set(members("direct", "video:1"))
            proxy.cut()
            until(
                lambda before=before: not before & set(members("direct", "video:1")),  # type: ignore[misc]
                "both asking again",
            )
            until(lambda: not unheard("direct", "video:1"), "both of them listening")
            assert waiting_directly() == 2
            # A question whose connection is cut twice is an outage.
            until(no_question_is_open, "the answers to both")
        lease.release()
        until(lambda: not first.is_alive() or not second.is_alive(), "a hand-over", SOON_SECONDS)
        locks.clear("video:1")
        assert first.result(SOON_SECONDS).token != second.result(SOON_SECONDS).token

    def listening(self) -> list[Any]:
        store: Any = stores["direct"]
        found = store.client.redis.pubsub_channels(store.keyspace.index.decode() + ":*")
        return list(found)

    def test_hand_over_that_is_lost_on_the_way_is_found(
        self, proxy: CutProxy, lease: Lease
    ) -> None:
        """It holds the lock already when it asks again."""
        thread = waiter("video:1", 1)
        proxy.pause()
        lease.release()
        handed = locks.using("direct").get("video:1")
        assert handed is not None
        assert handed.token != lease.token
        proxy.cut()
        proxy.resume()
        assert thread.result(SOON_SECONDS).token == handed.token
        assert thread.result().release()

    def test_cut_without_waiters_is_noticed_by_the_next_waiter(
        self, proxy: CutProxy, lease: Lease
    ) -> None:
        assert locks.acquire("video:1", wait=0.05) is None
        for _ in range(3):
            proxy.cut()
            thread = waiter("video:1", 1)
            assert locks.clear("video:1")
            assert thread.result(SOON_SECONDS).held

    def test_whatever_is_cut_waiting_fails_by_store_unavailable_alone(
        self, proxy: CutProxy, lease: Lease
    ) -> None:
        over = threading.Event()

        def wait_in_vain() -> None:
            while not over.is_set():
                try:
                    assert locks.acquire("video:1", wait=0.05) is None
                except StoreUnavailable:
                    pass

        threads = [Meanwhile(wait_in_vain) for _ in range(12)]
        for _ in range(60):
            time.sleep(0.02)
            proxy.cut()
        over.set()
        for thread in threads:
            thread.result()
        # Some could not leave the queue: they are passed over like dead ones.
        last = waiter("video:1", waiting("video:1") + 1)
        lease.release()
        assert last.result(SOON_SECONDS).held

    def test_release_while_the_waiter_is_deaf_does_not_leave_the_lock_to_it(
        self, proxy: CutProxy, lease: Lease
    ) -> None:
        thread = waiter("video:1", 1)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            thread.result()
        until(lambda: not self.listening(), "the server noticing the cut")
        lease.release()
        until(lambda: not locks.using("direct").is_locked("video:1"), "nobody holding it")

    def test_client_that_cannot_listen_polls_until_it_can(
        self, proxy: CutProxy, lease: Lease, redis_server: RedisServer
    ) -> None:
        """Its connections live on, and a new one is not to be had for a while."""
        assert locks.acquire("video:1") is None
        proxy.refuse()
        traffic = Traffic(redis_server)
        thread = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: traffic.scripts() > 4, "polling")
        assert waiting_directly() == 0
        # Then it stands in the queue, or others in the queue would be served for ever before it
        proxy.accept()
        until(lambda: waiting_directly() == 1, "joining the queue")
        lease.release()
        assert thread.result(SOON_SECONDS).held

    def test_client_that_cannot_subscribe_gets_a_lock_without_waiters(
        self, proxy: CutProxy, lease: Lease
    ) -> None:
        assert locks.acquire("video:1") is None
        proxy.refuse()
        thread = Meanwhile(lambda: taken("video:1", wait=None))
        lease.release()
        assert thread.result(SOON_SECONDS).held

    def test_client_that_cannot_subscribe_again_keeps_its_position(
        self, proxy: CutProxy, lease: Lease, redis_server: RedisServer
    ) -> None:
        """Only its subscription was cut: it asks on another connection meanwhile."""
        first = waiter("video:1", 1)
        proxy.refuse()
        redis.Redis.from_url(redis_server.url).client_kill_filter(_type="pubsub")
        traffic = Traffic(redis_server)
        until(lambda: traffic.scripts() > 4, "polling")
        direct = locks.using("direct")
        second = Meanwhile(lambda: direct.acquire("video:1", ttl=LONG, wait=None))
        until(lambda: waiting_directly() >= 1, "another one in the queue")
        proxy.accept()
        until(
            lambda: waiting_directly() == 2 and not unheard("direct", "video:1"),
            "both in the queue",
        )
        names = [owner.thread for owner in direct.waiters("video:1")]
        assert names == [first.name, second.name]
        lease.release()
        first.result(SOON_SECONDS).release()
        assert second.result(SOON_SECONDS) is not None


def waiting_directly() -> int:
    info = locks.using("direct").get("video:1")
    return (info.waiters or 0) if info else 0


def no_question_is_open() -> bool:
    store: Any = stores["default"]
    connections = store.client._connections
    return bool(len(connections._idle) == connections._in_use())


def test_listening_connection_never_connects_again(
    own_redis_server: RedisServer, use_redis: UseRedis
) -> None:
    """redis-py would do so by itself, and who reads for all would read the replies to that."""
    use_redis(own_redis_server.url)
    server = redis.Redis.from_url(own_redis_server.url)
    taken("video:1")
    store: Any = stores["default"]

    def listening() -> Any:
        # On a busy machine so short a wait may end before the connection is made.
        assert locks.acquire("video:1", wait=0.05) is None
        return store.subscriber._connection

    connection = until(listening)
    connection.disconnect()
    before: Any = server.info("stats")
    with pytest.raises(redis.ConnectionError, match="was cut"):
        connection.send_command("PING")
    with pytest.raises(redis.ConnectionError, match="was cut"):
        connection.can_read(timeout=0)
    after: Any = server.info("stats")
    assert after["total_connections_received"] == before["total_connections_received"]
    assert locks.acquire("video:1", wait=0.05) is None


class TestSilence:
    """The server says nothing when the wait ends."""

    def test_a_waiter_asks_once(
        self, use_redis: UseRedis, own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_redis(own_redis_server.url, tasklock={"OPTIONS": {"SOCKET_TIMEOUT": 0.3}})
        store: Any = stores["default"]
        lease, leave, left = taken("video:1"), store.leave_queue, []

        def leave_queue(*args: Any) -> Any:
            left.append(args)
            return leave(*args)

        monkeypatch.setattr(store, "leave_queue", leave_queue)
        thread = Meanwhile(lambda: locks.acquire("video:1", wait=5.0))
        until(lambda: waiting("video:1") == 1)
        own_redis_server.pause()
        with pytest.raises(StoreUnavailable):
            thread.result()
        own_redis_server.resume()
        assert len(left) == 1
        # Nobody listens for it any more, so it is not handed the lock.
        assert lease.release()
        assert not locks.is_locked("video:1")


# Who is interrupted while redis-py connects leaves a socket to the garbage collector. And the
# handler may run in a finalizer, of which Python ignores what is raised.
@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
class TestInterruption:
    @pytest.fixture(autouse=True)
    def collected(self) -> Iterator[None]:
        yield
        gc.collect()

    @pytest.fixture(autouse=True)
    def on_redis(self, use_redis: UseRedis) -> None:
        # The history would be written on a connection that is counted, or left open here.
        use_redis(tasklock={"OPTIONS": {"HISTORY": 0}})

    @pytest.fixture
    def interrupt(self) -> Iterator[Any]:
        """``interrupt(seconds)``: raise `SoftTimeLimitExceeded` in this thread after that time.

        What decodes a record takes errors of other classes for those of a bad record.
        """

        def raise_it(signum: int, frame: FrameType | None) -> None:
            if in_finalizer(frame):  # Nobody would hear of it.
                signal.setitimer(signal.ITIMER_REAL, 0.001)
            else:
                raise SoftTimeLimitExceeded

        before = signal.signal(signal.SIGALRM, raise_it)
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    def test_an_interrupted_waiter_leaves_the_queue(self, interrupt: Any) -> None:
        lease = taken("video:1")
        with pytest.raises(SoftTimeLimitExceeded):  # noqa: PT012
            interrupt(0.1)
            locks.acquire("video:1", wait=None)
        until(lambda: waiting("video:1") == 0)
        lease.release()
        assert not locks.is_locked("video:1")

    def test_others_get_their_messages_after_the_reader_was_interrupted(
        self, interrupt: Any
    ) -> None:
        for turn in range(10):
            lease = taken("video:1")
            others: list[Meanwhile[Lease]] = []
            starter = threading.Timer(
                0.02,
                lambda: others.append(Meanwhile(lambda: taken("video:1", wait=None))),  # noqa: B023
            )
            starter.start()
            with pytest.raises(SoftTimeLimitExceeded):  # noqa: PT012
                interrupt(0.1 + turn / 1000)
                locks.acquire("video:1", wait=None)
            until(lambda: len(others) == 1)  # noqa: B023
            until(lambda: waiting("video:1") == 1)
            lease.release()
            assert others[0].result(SOON_SECONDS).release()

    def test_interrupted_in_the_moment_of_the_hand_over_loses_no_lock(self, interrupt: Any) -> None:
        """At any instruction: whatever was granted is given back, and nobody stays deaf."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        for _ in range(150):
            lease = taken("video:1")
            releaser = threading.Timer(0.01, lease.release)
            releaser.start()
            won = None
            try:
                interrupt(0.0098 + chance.random() * 0.0012)
                won = locks.acquire("video:1", ttl=LONG, wait=None)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except SoftTimeLimitExceeded as error:
                frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
                if frames[-2] in (frames[0], LockService.acquire.__code__):
                    # Between the answer and its name, here or in what only passes it on: it is
                    # the caller's already.
                    locks.clear("video:1")
            signal.setitimer(signal.ITIMER_REAL, 0)
            releaser.join()
            if won is not None:
                won.release()
            until(lambda: not locks.is_locked("video:1"), "giving the lock back", SOON_SECONDS)


def test_no_thread_is_started_for_waiters(use_redis: UseRedis) -> None:
    use_redis()
    lease = taken("video:1")
    before = set(threading.enumerate())
    threads = [waiter("video:1", position + 1) for position in range(3)]
    # Not those that Python has only named, of tests before this one.
    started = [type(thread) for thread in set(threading.enumerate()) - before]
    assert [each for each in started if each is not threading._DummyThread] == [Meanwhile] * 3
    for thread in threads:
        lease.release()
        lease = thread.result()


@pytest.mark.parametrize("slots", [1, 2])
def test_a_waiter_hears_of_a_lease_that_was_made_shorter(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    """Nobody tells it; so it asks again, long before the end of the lease that it knew of."""
    use_redis()
    monkeypatch.setattr(waiting_module, "LONGEST_SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(permit_queue_module, "LONGEST_SILENCE_SECONDS", 0.5)
    leases = [taken("video", ttl=10 * LONG, slots=slots) for _ in range(slots)]
    waits = Meanwhile(lambda: taken("video", wait=None, slots=slots))
    until(lambda: waiting(leases[0].name) == 1, "the waiter")
    assert leases[0].extend(0.2)
    assert waits.result().release()
