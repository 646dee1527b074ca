"""The subscriber's connection is dropped on the way: the server knows, and this process does not.

As by a firewall or a load balancer that forgets connections that are silent for long.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.redis import subscriber
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.nightly

TURNS = 15
NOT_BY_LOOKING_SECONDS = 15.0
"""in which no waiter looks by itself whether the lock is free"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "TRUST_SECONDS", 0.1)
    monkeypatch.setattr(subscriber, "SUBSCRIBE_CONFIRM_SECONDS", 1.0)


class Firewall:
    """Passes everything on, and may drop, without a word, the connections that have subscribed."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.subscribed: list[socket.socket] = []
        self.sockets = [socket.create_server(("127.0.0.1", 0))]
        self.threads = [threading.Thread(target=self.serve, daemon=True)]
        self.port: int = self.sockets[0].getsockname()[1]
        self.threads[0].start()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.sockets[0].accept()
                server = socket.create_connection(("127.0.0.1", self.to))
                self.sockets += client, server
                for pump in (self.requests, self.replies):
                    thread = threading.Thread(target=pump, args=(client, server), daemon=True)
                    self.threads.append(thread)
                    thread.start()

    def requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if b"SUBSCRIBE" in data:
                    self.subscribed.append(server)
                with contextlib.suppress(OSError):
                    server.sendall(data)
        self.end(server)

    def replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        if server not in self.subscribed:
            self.end(client)

    def drop(self) -> None:
        for server in self.subscribed:
            self.end(server)

    def end(self, side: socket.socket) -> None:
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self.sockets:
            self.end(each)
        for thread in self.threads:
            thread.join(5)
        for each in self.sockets:
            each.close()


@pytest.fixture
def firewall(own_redis_server: RedisServer, use_redis: UseRedis) -> Iterator[Firewall]:
    made = Firewall(own_redis_server.port)
    use_redis(f"redis://127.0.0.1:{made.port}/0")
    yield made
    stores["default"].close_idle()
    made.close()


def test_a_waiter_is_woken(firewall: Firewall) -> None:
    """And the next ones too, over a connection that is made anew."""
    first = taken("video:1", ttl=LONG)
    assert locks.acquire("video:1", wait=0.2) is None  # From now on it has a channel.
    firewall.drop()
    time.sleep(0.2)
    for _ in range(3):
        waits = Meanwhile(lambda: taken("video:1", ttl=LONG, wait=None))
        until(lambda: waiting("video:1") == 1, "a waiter")
        assert first.release()
        first = waits.result(NOT_BY_LOOKING_SECONDS)
    first.release()


def test_it_is_not_passed_over_for_ever(firewall: Firewall) -> None:
    """Others that came after it get the lock again and again."""
    first = taken("video:1", ttl=5)
    assert locks.acquire("video:1", wait=0.2) is None  # From now on it has a channel.
    firewall.drop()
    first.release()
    with Agent() as one, Agent() as two:
        holds, waits = one, two
        assert holds.ask("acquire", name="video:1", ttl=2, renew=True)
        deaf = Meanwhile(lambda: locks.acquire("video:1", ttl=0.5, wait=PATIENCE))
        until(lambda: waiting("video:1") == 1, "the deaf waiter")
        for _ in range(TURNS):
            waits.tell("acquire", name="video:1", ttl=2, wait=None, renew=True)
            until(partial(last_in_the_queue, waits, deaf), "the other waiter")
            time.sleep(1)
            if not deaf.is_alive():
                break
            assert holds.ask("release")
            assert waits.answer()
            holds, waits = waits, holds
        assert not deaf.is_alive(), f"{TURNS} turns of those that came later"


def last_in_the_queue(other: Agent, deaf: Meanwhile[Any]) -> bool:
    """Whether the other process waits, or there is nothing left to wait for."""
    waiters = locks.waiters("video:1")
    return not deaf.is_alive() or (bool(waiters) and waiters[-1].pid == other.pid)


def test_a_free_lock_is_taken_before_anything_is_subscribed(firewall: Firewall) -> None:
    """The first question of a waiter is not asked on a channel that may be none any more."""
    lease = taken("video:1", ttl=LONG)
    assert locks.acquire("video:1", wait=0.2) is None
    lease.release()
    firewall.drop()
    time.sleep(0.2)
    waiter = stores["default"].waiter("video:2", new_token(), LONG, owner_record())
    assert waiter is not None
    assert not waiter.ready
    taken("video:2", wait=LONG).release()
