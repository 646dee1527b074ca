"""Whether a lock can be had at all: asked of a store as a caller asks, and leaving nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_tasklock import locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.cluster import SLOTS, bucket_of
from django_tasklock.testing import outage
from tests.clusters import Cluster
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.store_cases import own_prefix

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


def test_no_list_shows_the_lease_that_was_tried(
    each_store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who asks for a list meanwhile has not seen a lock."""
    if not each_store.supports_listing:
        pytest.skip("it shows no list")
    ended: list[str] = []

    def release(name: str, token: str) -> bool:
        ended.append(name)
        return False

    monkeypatch.setattr(each_store, "release", release)
    assert each_store.cannot_write("video:1") == ""
    assert ended
    assert each_store.get(ended) != [None]
    assert (locks.list(), [*each_store.walk()]) == ([], [])


def test_of_a_cluster_the_node_of_the_lock_is_asked(
    redis_cluster: Cluster, use_caches: UseCaches
) -> None:
    use_caches({}, {"default": redis_cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    full, other, *_ = redis_cluster.masters
    of = {redis_cluster.master_of(SLOTS[bucket_of(name)]): name for name in "abcdefghijklmnop"}
    full.run("CONFIG", "SET", "maxmemory", "1")
    try:
        said = {each: stores["default"].cannot_write(of[each]) for each in (full, other)}
    finally:
        full.run("CONFIG", "SET", "maxmemory", "0")
    assert "the server is full" in said[full]
    assert said[other] == ""


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
