"""Waiting while things break: waiters die, connections are cut, callers are interrupted."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import redis
from billiard.exceptions import SoftTimeLimitExceeded

from django_tasklock import Lease, StoreUnavailable, lock, locks
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.interruptions import in_finalizer
from tests.proxy import CutProxy
from tests.seeds import drawn_seed
from tests.servers import RedisServer
from tests.steps import (
    LONG,
    SOON_SECONDS,
    Meanwhile,
    Traffic,
    taken,
    waiter,
    waiting,
)
from tests.store_cases import redis_cache
from tests.waiting import until


def waits(agent: Agent, position: int) -> None:
    """Have a process wait for video:1, at this position."""
    agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
    until(lambda: waiting("video:1") == position, f"waiter {position}")


class TestDeath:
    @pytest.fixture
    def server(self, own_redis_server: RedisServer, use_redis: UseRedis) -> Any:
        use_redis(own_redis_server.url, tasklock={"OPTIONS": {"TAKEOVER": False}})
        return redis.Redis.from_url(own_redis_server.url)

    def test_dead_waiters_are_passed_over(self, server: Any) -> None:
        """Also where a monitor listens to every channel there is: it is no waiter."""
        monitor = server.pubsub()
        monitor.psubscribe("*")
        lease = taken("video:1")
        with Agent() as first, Agent() as second:
            for position, agent in enumerate((first, second), 1):
                waits(agent, position)
            thread = waiter("video:1", 3)
            for agent in (first, second):
                agent.kill()
            until(lambda: len(server.pubsub_channels()) == 1, "the server noticing the deaths")
        lease.release()
        assert thread.result(SOON_SECONDS).held
        monitor.close()


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


def waiting_directly() -> int:
    info = locks.using("direct").get("video:1")
    return (info.waiters or 0) if info else 0


# Who is interrupted while redis-py connects leaves a socket to the garbage collector. And the
# handler may run in a finalizer, of which Python ignores what is raised.
@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
class TestInterruption:
    @pytest.fixture(autouse=True)
    def on_redis(self, own_redis_server: RedisServer, use_redis: UseRedis) -> Iterator[RedisServer]:
        # The history would be written on a connection that is counted, or left open here.
        use_redis(own_redis_server.url, tasklock={"OPTIONS": {"HISTORY": 0}})
        yield own_redis_server
        gc.collect()

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

    def test_interrupted_in_the_moment_of_the_hand_over_loses_no_lock(self, interrupt: Any) -> None:
        """At any instruction: whatever was granted is given back, and nobody stays deaf."""
        chance = random.Random(drawn_seed())
        for _ in range(150):
            lease = taken("video:1")
            releaser = threading.Timer(0.01, lease.release)
            releaser.start()
            with contextlib.suppress(SoftTimeLimitExceeded):
                interrupt(0.0098 + chance.random() * 0.0012)
                with lock("video:1", ttl=LONG, wait=None):
                    signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            releaser.join()
            until(lambda: not locks.is_locked("video:1"), "giving the lock back", SOON_SECONDS)


class TestLateAnswers:
    """They take longer than the leases last: no work begins without the lock."""

    TTL_SECONDS = 0.05

    @pytest.fixture(autouse=True)
    def through_a_proxy(self, cut_proxy: CutProxy, use_redis: UseRedis) -> None:
        use_redis(cut_proxy.url)
        locks.is_locked("job:1")
        cut_proxy.latency = self.TTL_SECONDS

    @pytest.mark.parametrize(("wait", "slots"), [(0, 1), (None, 1), (None, 2)])
    def test_the_call_raises(self, wait: float | None, slots: int) -> None:
        with pytest.raises(StoreUnavailable, match=r"later than a lease of 0\.05 s lasts"):
            locks.acquire("job:1", ttl=self.TTL_SECONDS, wait=wait, slots=slots)
        names = ("job:1", "job:1#1", "job:1#2")
        until(lambda: not any(map(locks.is_locked, names)), "the end of what was granted")
