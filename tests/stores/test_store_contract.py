"""The store contract, held against every store; and what those on a cache add to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.core.cache import cache, caches

from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import BaseStore, Grant, Refusal
from django_tasklock.stores.cluster import RedisClusterStore
from django_tasklock.stores.quorum import QuorumStore
from tests.stores.contract import WholeContract

TTL_SECONDS = 30.0


class TestEveryStore(WholeContract):
    @pytest.fixture(autouse=True)
    def _every_store(self, each_store: BaseStore, request: pytest.FixtureRequest) -> None:
        self.store = each_store
        # Its add is a look and then a write.
        self.excludes = "file-based" not in request.node.callspec.id
        self.one_clock = not isinstance(each_store, QuorumStore)

    def make_store(self) -> BaseStore:
        return self.store

    def make_silent_store(self) -> BaseStore | None:
        settings = self.store.settings
        if "HOSTS" in settings.options:
            nowhere = {"HOSTS": "127.0.0.1:1", "TIMEOUT": 0.2}
            return type(self.store)(replace(settings, options=nowhere))
        if isinstance(self.store, RedisClusterStore):
            options = {"LOCATION": "redis://127.0.0.1:1"}
            return RedisClusterStore(replace(settings, options=options))
        if "silent" not in caches.settings:
            return None
        return type(self.store)(replace(settings, cache="silent"))


@pytest.fixture
def name() -> str:
    return "video:123"


def grant(store: BaseStore, name: str, token: str) -> Grant:
    answer = store.acquire(name, token, TTL_SECONDS, owner_record())
    assert isinstance(answer, Grant)
    return answer


def test_a_fence_is_raised_for_its_own_lease_and_never_lowered(
    each_store: BaseStore, name: str
) -> None:
    store = each_store
    if not store.raises_fences:
        pytest.skip("no member of a quorum needs it to")
    token = new_token()
    first = grant(store, name, token)
    ahead = (first.fence or 0) + 10**9
    for fence in (ahead, ahead - 5):
        assert store.raise_fence(name, token, fence, first.proof)
        assert shown_fence(store, name) == ahead
    assert store.release(name, token, first.proof)
    following = grant(store, name, new_token())
    assert (following.fence or 0) > ahead
    assert not store.raise_fence(name, token, ahead + 10**9, first.proof)
    assert not store.raise_fence(name, token, ahead + 10**9)
    assert shown_fence(store, name) == following.fence


def shown_fence(store: BaseStore, name: str) -> int | None:
    held = store.get(name)
    return None if held is None else held.fence


def test_the_key_is_the_caches_own(cache_store: BaseStore, name: str) -> None:
    """The cache itself finds the lock under ``KEY_PREFIX:name``, and cannot add to it."""
    token = new_token()
    grant(cache_store, name, token)
    prefix = cache_store.settings.key_prefix
    key = f"{prefix}:{name}" if prefix else name
    held = cache_store.get(name)
    assert held is not None
    assert held.key == cache.make_key(key)
    assert token in str(cache.get(key))
    assert cache.add(key, "somebody's", TTL_SECONDS) is False
    assert cache.delete(key) is True
    assert cache_store.get(name) is None


@pytest.mark.parametrize("value", ["locked", 1, True, {"token": 5}, [1], b"\xff", ""])
def test_a_key_that_somebody_else_set_is_a_lock_too(
    cache_store: BaseStore, name: str, value: Any
) -> None:
    prefix = cache_store.settings.key_prefix
    key = f"{prefix}:{name}" if prefix else name
    try:
        assert cache.add(key, value, TTL_SECONDS) is True
    except TypeError:
        pytest.skip("this serializer cannot carry the value")
    held = cache_store.get(name)
    assert held is not None
    assert (held.token, held.acquired_at, held.fence) == (None, None, None)
    assert set(held.owner.as_dict().values()) == {None}
    answer = cache_store.acquire(name, new_token(), TTL_SECONDS, owner_record())
    assert isinstance(answer, Refusal)
    assert answer.holder.token is None
    assert cache_store.release(name, new_token()) is False
    assert cache_store.extend(name, new_token(), TTL_SECONDS) is False
    assert cache_store.clear(name, new_token()) is False
    assert cache.get(key) == value
    assert cache_store.clear(name) is True
    assert cache.get(key) is None
    grant(cache_store, name, new_token())


def test_a_key_that_never_expires_is_a_lock_without_ttl(cache_store: BaseStore, name: str) -> None:
    prefix = cache_store.settings.key_prefix
    assert cache.add(f"{prefix}:{name}" if prefix else name, "for ever", None) is True
    held = cache_store.get(name)
    assert held is not None
    assert held.ttl is None
    answer = cache_store.acquire(name, new_token(), TTL_SECONDS, owner_record())
    assert isinstance(answer, Refusal)
    assert answer.holder.ttl is None
    assert cache_store.clear(name) is True
