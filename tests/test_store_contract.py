"""The store contract, held against every store; and what the two kinds of store add to it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock.lease import new_token
from django_tasklock.owner import owner_record
from django_tasklock.stores.base import BaseStore, Grant, Refusal
from django_tasklock.testing import StoreContract

TTL = 30.0


class TestEveryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _every_store(self, store: BaseStore, request: pytest.FixtureRequest) -> None:
        self.store = store
        # Its add is a look and then a write.
        self.excludes = "file-based" not in request.node.callspec.id

    def make_store(self) -> BaseStore:
        return self.store


@pytest.fixture
def name() -> str:
    return "video:123"


def grant(store: BaseStore, name: str, token: str) -> Grant:
    answer = store.acquire(name, token, TTL, owner_record())
    assert isinstance(answer, Grant)
    return answer


def test_the_key_is_the_caches_own(store: BaseStore, name: str) -> None:
    """The cache itself finds the lock under ``KEY_PREFIX:name``, and cannot add to it."""
    token = new_token()
    grant(store, name, token)
    prefix = store.settings.key_prefix
    key = f"{prefix}:{name}" if prefix else name
    held = store.get(name)
    assert held is not None
    assert held.key == cache.make_key(key)
    assert token in str(cache.get(key))
    assert cache.add(key, "somebody's", TTL) is False
    assert cache.delete(key) is True
    assert store.get(name) is None


@pytest.mark.parametrize("value", ["locked", 1, True, {"token": 5}, [1], b"\xff", ""])
def test_a_key_that_somebody_else_set_is_a_lock_too(
    store: BaseStore, name: str, value: Any
) -> None:
    prefix = store.settings.key_prefix
    key = f"{prefix}:{name}" if prefix else name
    try:
        assert cache.add(key, value, TTL) is True
    except TypeError:
        pytest.skip("this serializer cannot carry the value")
    held = store.get(name)
    assert held is not None
    assert (held.token, held.acquired_at, held.fence) == (None, None, None)
    assert set(held.owner.as_dict().values()) == {None}
    answer = store.acquire(name, new_token(), TTL, owner_record())
    assert isinstance(answer, Refusal)
    assert answer.holder.token is None
    assert store.release(name, new_token()) is False
    assert store.extend(name, new_token(), TTL) is False
    assert store.clear(name, new_token()) is False
    assert cache.get(key) == value
    assert store.clear(name) is True
    assert cache.get(key) is None
    grant(store, name, new_token())


def test_a_key_that_never_expires_is_a_lock_without_ttl(store: BaseStore, name: str) -> None:
    prefix = store.settings.key_prefix
    assert cache.add(f"{prefix}:{name}" if prefix else name, "for ever", None) is True
    held = store.get(name)
    assert held is not None
    assert held.ttl is None
    answer = store.acquire(name, new_token(), TTL, owner_record())
    assert isinstance(answer, Refusal)
    assert answer.holder.ttl is None
    assert store.clear(name) is True
