"""The connection on which a process hears of hand-overs."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import redis

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.inside import interrupt_ends_of_subscriptions, listen_for, silence_seconds
from tests.interruptions import Interrupt, signalled
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, fork, holder, in_child, taken, waiter, waiting
from tests.waiting import until


@pytest.fixture(autouse=True)
def own_server(own_redis_server: RedisServer, use_redis: UseRedis) -> RedisServer:
    use_redis(own_redis_server.url, tasklock={"OPTIONS": {"HISTORY": 0, "SOCKET_TIMEOUT": 1}})
    return own_redis_server


def listener() -> Any:
    store: Any = stores["default"]
    return store.listeners.own()[0]


def connection() -> Any:
    """That of this process, once it has one."""

    def listening() -> Any:
        # On a busy machine so short a wait may end before the connection is made.
        assert locks.acquire("video:1", wait=0.05) is None
        return listener().subscribed and listener()._held[""].connection

    return until(listening)


def channels(server: RedisServer) -> int:
    """To how many somebody listens."""
    with redis.Redis.from_url(server.url) as client:
        return len(client.pubsub_channels())


def test_there_are_listeners_only_where_somebody_waits() -> None:
    # Given a process in which nobody has waited, I expect it to listen to nothing
    store: Any = stores["default"]
    assert taken("video:1").release()
    store.close_idle()
    assert not any(each.subscribed for each in store.listeners.own())

    # And to do so as soon as somebody waits
    taken("video:1")
    connection()
    assert store.listeners.own()[0].subscribed


def test_a_connection_that_nobody_reads_is_not_used_and_its_thread_ends(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken("video:1")
    before = connection()
    assert connection() is before
    listen_for(monkeypatch, 0.0)
    assert not listener().subscribed
    monkeypatch.undo()
    listener()._held[""].heard -= silence_seconds()
    assert connection() is not before
    assert channels(own_server) == 1
    listen_for(monkeypatch, 0.1)
    connection()
    listener().read_by_thread()
    until(lambda: not channels(own_server), "the end of the subscription")
    assert not listener().subscribed


def test_it_is_cut_if_it_was_dropped_on_the_way(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a firewall that forgets silent connections: the server knows, and nobody here."""
    listen_for(monkeypatch, 0.2)
    lease = taken("video:1")
    thread = waiter("video:1", 1)
    dropped = connection()._sock.fileno()
    silent, other = socket.socketpair()
    os.dup2(silent.fileno(), dropped)
    assert lease.release()
    thread.result(15)  # In which no waiter looks whether the lock is free.
    for end in (silent, other):
        end.close()


def test_a_lock_whose_hand_over_was_not_heard_is_granted_anew(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no new subscription is to be had: its lease began at the hand-over, and the waiter
    does not know when that was."""
    lease, hears = taken("video:1"), listener()
    thread = waiter("video:1", 1)

    def refused(**_: object) -> None:
        raise redis.ConnectionError("max number of clients reached")

    monkeypatch.setattr(hears, "_deliver", lambda *_: None)
    assert lease.release()
    until(lambda: (holder("video:1").ttl or LONG) < LONG - 1)
    store: Any = stores["default"]
    monkeypatch.setattr(store.client, "new_connection", refused)
    hears._end(hears._held[""])
    mine = thread.result()
    left = holder("video:1").ttl or 0.0
    assert mine.remaining <= left


def test_a_subscription_whose_end_was_interrupted_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise Interrupt

    taken("video:1")
    before = connection()
    with monkeypatch.context() as alarm:
        interrupt_ends_of_subscriptions(alarm, interrupted)
        with pytest.raises(Interrupt):
            listener().close_idle()
    assert connection() is not before


def test_a_waiter_whose_server_says_nothing_asks_once_at_its_end(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = stores["default"]
    lease, run, scripts = taken("video:1"), store.client.run, list[Any]()
    thread = Meanwhile(lambda: locks.acquire("video:1", wait=5.0))
    until(lambda: waiting("video:1") == 1)

    def counted(script: Any, *args: Any, **kwargs: Any) -> Any:
        scripts.append(script)
        return run(script, *args, **kwargs)

    monkeypatch.setattr(store.client, "run", counted)
    own_server.pause()
    with pytest.raises(StoreUnavailable):
        thread.result()
    own_server.resume()
    monkeypatch.undo()
    assert len(scripts) <= 2, "it leaves the queue, and its token is given up"
    # What is handed to it is passed on.
    assert waiting("video:1") == 1
    assert lease.release()
    until(lambda: not locks.is_locked("video:1"), "the lock that was handed to nobody")


def test_an_interrupted_subscription_leaves_nobody_who_waits(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe = listener().subscribe

    def interrupted(*args: Any) -> Any:
        own_server.pause()
        try:
            with signalled(Interrupt(), 0.3):
                return subscribe(*args)
        finally:
            own_server.resume()

    taken("video:1")
    with monkeypatch.context() as alarm:
        alarm.setattr(listener(), "subscribe", interrupted)
        for _ in range(3):
            with pytest.raises(Interrupt):
                locks.acquire("video:1", wait=20)
            assert not listener()._hearings
    thread = waiter("video:1", 1)
    assert channels(own_server) == 1
    locks.clear("video:1")
    thread.result()


@pytest.mark.usefixtures("each_fork")
def test_a_child_listens_on_a_connection_of_its_own(own_server: RedisServer) -> None:
    lease = taken("video:1")
    connection()
    mine = listener().id

    def child() -> Any:
        subscribed = listener().subscribed
        assert locks.acquire("video:1", wait=0.2) is None
        return [subscribed, listener().id != mine, channels(own_server)]

    assert in_child(child) == [False, True, 2]
    assert channels(own_server) == 1
    assert lease.release()


def test_a_child_keeps_no_dead_waiter_of_its_parent_alive(own_server: RedisServer) -> None:
    taken("video:1")
    reading, writing = os.pipe()
    parent = fork()
    if parent == 0:
        try:
            connection()
            if not fork():
                os.close(writing)
                os.read(reading, 1)  # It lives until the end of the test.
        finally:
            os._exit(0)
    os.waitpid(parent, 0)
    until(lambda: not channels(own_server), "the end of the parent's subscription", within=5)
    os.close(writing)
    os.close(reading)
