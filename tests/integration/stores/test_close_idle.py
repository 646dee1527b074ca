"""Connections of stores that the settings name no more: they are closed, not left to the garbage
collector, which may find the socket first and warn."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, taken
from tests.waiting import until


@pytest.fixture
def name(redis_server: RedisServer, use_redis: UseRedis) -> str:
    """That of all connections of the store "default"."""
    name = new_token()
    # Without a history: it may be written at any moment, and that takes a connection.
    use_redis(f"{redis_server.url}?client_name={name}", tasklock={"OPTIONS": {"HISTORY": 0}})
    return name


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as admin:
        yield admin


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """What closes the connections is not the garbage collector."""
    gc.disable()
    yield
    gc.enable()


def count(admin: Any, name: str) -> int:
    return sum(client["name"] == name for client in admin.client_list())


def change_settings() -> None:
    with override_settings(TASKLOCK={"default": {"KEY_PREFIX": "other"}}):
        pass


def test_changed_settings_close_the_connections(admin: Any, name: str) -> None:
    lease = taken("video:1")
    store = stores["default"]

    def both_are_there() -> bool:
        # On a busy machine the wait may be over before it has begun.
        assert locks.acquire("video:1", ttl=LONG, wait=0.01) is None
        return count(admin, name) == 2

    until(both_are_there, "one connection for scripts, and one for what waiters are told")
    change_settings()
    until(lambda: count(admin, name) == 0)
    assert stores["default"] is not store
    assert lease.release()


def test_a_waiter_goes_on_waiting(admin: Any, name: str) -> None:
    store: Any = stores["default"]
    got: list[bool] = []
    lease = taken("video:1")
    waiting = threading.Thread(target=lambda: got.append(taken("video:1", wait=LONG).release()))
    waiting.start()
    until(lambda: len(store.waiters("video:1")) == 1)
    connection = store.subscriber._connection
    change_settings()
    assert store.subscriber._connection is connection, "it was not cut, and need not ask again"
    assert count(admin, name) >= 1
    assert lease.release()
    waiting.join()
    assert got == [True]
