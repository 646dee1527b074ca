"""Locks of owners that are gone: what it costs to find hundreds of them."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.operators.gone_owners import gone_owners
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


def test_each_record_is_decoded_once(orphans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    records: Any = locks.store
    decoded: list[bytes] = []
    record = records.records.record

    def counting(value: bytes) -> Any:
        decoded.append(value)
        return record(value)

    monkeypatch.setattr(records.records, "record", counting)
    assert len(list(gone_owners(locks.store))) == LOCKS
    assert len(decoded) == len(set(decoded)) == LOCKS


def test_a_lock_that_another_lease_holds_by_then_is_left_out(
    orphans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = locks.store
    look = store.get_many

    def later(names: Any) -> Any:
        for name in ("video:7", "video:8"):
            store.clear(name)
        take("video:8", owner_record("videos.run", "id-8"))
        return look(names)

    monkeypatch.setattr(store, "get_many", later)
    found = {orphan.info.name for orphan in gone_owners(store)}
    assert found == {f"video:{number}" for number in range(LOCKS)} - {"video:7", "video:8"}
