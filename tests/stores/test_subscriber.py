"""The subscriber: the connection on which a process hears of hand-overs."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.redis import subscriber
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import Meanwhile, taken, waiter, waiting
from tests.waiting import until


@pytest.fixture(autouse=True)
def own_server(own_redis_server: RedisServer, use_redis: UseRedis) -> Iterator[RedisServer]:
    use_redis(own_redis_server.url, tasklock={"OPTIONS": {"HISTORY": 0, "SOCKET_TIMEOUT": 1}})
    yield own_redis_server
    gc.collect()


def connection() -> Any:
    """That of this process, once it has one."""
    store: Any = stores["default"]

    def listening() -> Any:
        # On a busy machine so short a wait may end before the connection is made.
        assert locks.acquire("video:1", wait=0.05) is None
        return store.subscriber._connection

    return until(listening)


def channels(server: RedisServer) -> int:
    return len(redis.Redis.from_url(server.url).pubsub_channels())


def test_a_cut_one_never_connects_again(own_server: RedisServer) -> None:
    """redis-py would do so by itself, and who reads for all would read the replies to that."""
    server = redis.Redis.from_url(own_server.url)
    taken("video:1")
    cut = connection()
    cut.disconnect()
    before: Any = server.info("stats")
    with pytest.raises(redis.ConnectionError, match="was cut"):
        cut.send_command("PING")
    with pytest.raises(redis.ConnectionError, match="was cut"):
        cut.can_read(timeout=0)
    after: Any = server.info("stats")
    assert after["total_connections_received"] == before["total_connections_received"]
    assert locks.acquire("video:1", wait=0.05) is None


def test_a_waiter_is_woken_though_it_was_dropped_on_the_way(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a firewall that forgets silent connections: the server knows, and nobody here."""
    monkeypatch.setattr(subscriber, "TRUST_SECONDS", 0.1)
    lease = taken("video:1")
    dropped = connection()._sock.fileno()
    silent, other = socket.socketpair()
    os.dup2(silent.fileno(), dropped)
    time.sleep(0.2)
    for _ in range(2):
        thread = waiter("video:1", 1)
        assert lease.release()
        lease = thread.result(15)  # In which no waiter looks whether the lock is free.
    assert channels(own_server) == 1, "they are used again"
    for end in (silent, other):
        end.close()


def test_a_waiter_whose_server_says_nothing_asks_once_at_its_end(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = stores["default"]
    lease, leave, left = taken("video:1"), store.leave_queue, []

    def leave_queue(*args: Any) -> Any:
        left.append(args)
        return leave(*args)

    monkeypatch.setattr(store, "leave_queue", leave_queue)
    thread = Meanwhile(lambda: locks.acquire("video:1", wait=5.0))
    until(lambda: waiting("video:1") == 1)
    own_server.pause()
    with pytest.raises(StoreUnavailable):
        thread.result()
    own_server.resume()
    assert len(left) == 1
    # Nobody listens for it any more, so it is not handed the lock.
    assert lease.release()
    assert not locks.is_locked("video:1")


class Interrupted(Exception):
    pass


def test_an_interrupted_subscription_leaves_no_channel(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = stores["default"]
    join = store.subscriber.join

    def interrupt(*_: object) -> None:
        raise Interrupted

    def interrupted(*args: Any) -> Any:
        own_server.pause()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            return join(*args)
        finally:
            own_server.resume()

    taken("video:1")
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        with monkeypatch.context() as alarm:
            alarm.setattr(store.subscriber, "join", interrupted)
            for _ in range(5):
                with pytest.raises(Interrupted):
                    locks.acquire("video:1", wait=20)
    finally:
        signal.signal(signal.SIGALRM, handler)
    thread = waiter("video:1", 1)
    assert channels(own_server) == 1
    locks.clear("video:1")
    thread.result()
