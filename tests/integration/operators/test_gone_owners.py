"""Locks of owners that are gone: what it costs to find hundreds of them."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.operators.gone_owners import gone_owners
from django_tasklock.stores.redis import RedisStore, searching
from tests.clusters import Cluster
from tests.conftest import UseCaches, UseRedis
from tests.store_cases import own_prefix

LOCKS = 1200


@pytest.fixture(params=["redis", "cluster"])
def orphans(request: pytest.FixtureRequest, use_caches: UseCaches, use_redis: UseRedis) -> None:
    """Locks of a process that has ended."""
    if request.param == "redis":
        use_redis()
    else:
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        use_caches({}, {"default": cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    for number in range(LOCKS):
        take(f"video:{number}", owner_record("videos.run", f"id-{number}") | {"start": 1})


def take(name: str, owner: dict[str, Any]) -> None:
    locks.store.acquire(name, new_token(), 600, owner)


def test_each_record_is_decoded_once(orphans: None) -> None:
    store: Any = locks.store
    store.records.record.cache_clear()
    assert len(list(gone_owners(store))) == LOCKS
    assert store.records.record.cache_info().misses == LOCKS


def test_a_lock_that_another_lease_holds_by_then_is_left_out(
    orphans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = locks.store
    client, get_many, run = store.client, store.get_many, store.client.run

    def change() -> None:
        monkeypatch.undo()
        for name in ("video:7", "video:8"):
            store.clear(name)
        take("video:8", owner_record("videos.run", "id-8"))

    def later(names: Any) -> Any:
        change()
        return get_many(names)

    def later_still(script: Any, *args: Any, **options: Any) -> Any:
        if script is searching.DESCRIBE_FOUND:
            change()
        return run(script, *args, **options)

    # Once it was looked which process lives, before the locks are asked for once more
    if isinstance(store, RedisStore):
        monkeypatch.setattr(client, "run", later_still)
    else:
        monkeypatch.setattr(store, "get_many", later)
    found = {orphan.info.name for orphan in gone_owners(store)}
    assert found == {f"video:{number}" for number in range(LOCKS)} - {"video:7", "video:8"}


def test_an_owner_that_ended_after_its_lock_was_read_is_not_reported(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock changes hands while it is looked for, and its next holder has ended by the time
    that it is asked whether that lives: whether it has released the lock is not known yet."""
    use_redis()
    store: Any = locks.store
    take("video:1", owner_record("videos.run", "id") | {"start": 1})
    run, described = store.client.run, []

    def between(script: Any, *args: Any, **options: Any) -> Any:
        if script is searching.DESCRIBE_FOUND:
            described.append(script)
            store.clear("video:1")
            if len(described) == 1:
                take("video:1", owner_record("videos.run", "next") | {"start": 2})
        return run(script, *args, **options)

    monkeypatch.setattr(store.client, "run", between)
    assert list(gone_owners(store)) == []
    assert len(described) == 2
