"""A signal that interrupts a waiter while it subscribes."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import taken


class Interrupted(Exception):
    pass


def test_an_interrupted_subscription_leaves_no_channel(
    own_redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis(own_redis_server.url)
    taken("video:1")
    assert locks.acquire("video:1", wait=0.05) is None
    store: Any = stores["default"]
    subscriber = store.subscriber
    subscriber._idle[subscriber._prefix].clear()  # As if another waiter had it.
    before = len(subscriber._channels)

    join = subscriber.join

    def interrupt(*_: object) -> None:
        raise Interrupted

    def interrupted(*args: Any) -> Any:
        own_redis_server.pause()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            return join(*args)
        finally:
            own_redis_server.resume()

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        with monkeypatch.context() as alarm:
            alarm.setattr(subscriber, "join", interrupted)
            for _ in range(5):
                with pytest.raises(Interrupted):
                    locks.acquire("video:1", wait=20)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert locks.acquire("video:1", wait=0.2) is None
    assert len(subscriber._channels) == before + 1
