"""Whether a lock can be had at all: asked of a store as a caller asks, and leaving nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_tasklock import locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.testing import outage
from tests.conftest import UseRedis
from tests.servers import RedisServer

REFUSING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "full": (lambda admin: admin.config_set("maxmemory", 1), "the server is full"),
    "a replica": (lambda admin: admin.replicaof("127.0.0.1", 1), "read only replica"),
    "alone": (lambda admin: admin.config_set("min-replicas-to-write", 1), "NOREPLICAS"),
}


def test_a_store_that_grants_locks_can_be_written_and_nothing_is_left(
    each_store: BaseStore,
) -> None:
    for _ in range(2):
        assert each_store.cannot_write() == each_store.cannot_write("video:1") == ""
    if each_store.supports_listing:
        assert locks.list() == []
    assert each_store.get([" tried ", " tried video:1"]) == [None, None]


@pytest.mark.parametrize("how", REFUSING)
def test_of_one_that_still_answers_and_grants_nothing_it_says_why(
    use_redis: UseRedis, own_redis_server: RedisServer, how: str
) -> None:
    use_redis(own_redis_server.url)
    refuse, why = REFUSING[how]
    with redis.Redis.from_url(own_redis_server.url) as admin:
        refuse(admin)
    assert locks.list() == []
    assert why in stores["default"].cannot_write()


def test_of_one_that_waits_in_vain_for_its_replicas_too(
    use_redis: UseRedis,
) -> None:
    use_redis(tasklock={"OPTIONS": {"REPLICAS": 1}})
    assert "0 of 1 replicas" in stores["default"].cannot_write()


def test_of_one_that_does_not_answer_as_well(each_store: BaseStore) -> None:
    with outage():
        assert each_store.cannot_write()
