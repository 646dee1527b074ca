"""The store contract, held against every store; and what those on a cache add to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.cache import cache, caches

from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import BaseStore, Grant, Refusal
from tests.stores.contract import WholeContract

TTL_SECONDS = 30.0


class TestEveryStore(WholeContract):
    @pytest.fixture(autouse=True)
    def _every_store(self, each_store: BaseStore) -> Iterator[None]:
        self.store = each_store
        yield
        del self.store  # pytest keeps this object, and with it the threads of the store's client.

    def make_store(self) -> BaseStore:
        return self.store

    def make_silent_store(self) -> BaseStore | None:
        settings = self.store.settings
        if "HOSTS" in settings.options:
            changed = replace(settings, options={"HOSTS": "127.0.0.1:1", "TIMEOUT": 0.2})
        elif "LOCATION" in settings.options:
            options = {"LOCATION": "redis://127.0.0.1:1", "SOCKET_TIMEOUT": 0.2}
            changed = replace(settings, options=options)
        elif self.store.uses_cache and "silent" in caches.settings:
            changed = replace(settings, cache="silent")
        else:
            return None
        return type(self.store)(changed)


NAME = "video:123"


@pytest.fixture
def key(cache_store: BaseStore) -> str:
    """What the cache calls the lock."""
    prefix = cache_store.settings.key_prefix
    return f"{prefix}:{NAME}" if prefix else NAME


def asked(store: BaseStore, token: str | None = None) -> Grant | Refusal:
    return store.acquire([NAME], token or new_token(), TTL_SECONDS, owner_record())


def test_the_key_is_the_caches_own(cache_store: BaseStore, key: str) -> None:
    """The cache itself finds the lock under ``KEY_PREFIX:name``, and cannot add to it."""
    token = new_token()
    assert isinstance(asked(cache_store, token), Grant)
    held = cache_store.find(NAME)
    assert held is not None
    assert held.key == cache.make_key(key)
    assert token in str(cache.get(key))
    assert cache.add(key, "somebody's", TTL_SECONDS) is False
    assert cache.delete(key) is True
    assert cache_store.find(NAME) is None


@pytest.mark.parametrize("value", ["locked", 1, True, {"token": 5}, [1], b"\xff", "", None])
def test_a_key_that_somebody_else_set_is_a_lock_too(
    cache_store: BaseStore, key: str, value: Any
) -> None:
    """None: a key that never expires."""
    value, lasts = ("for ever", None) if value is None else (value, TTL_SECONDS)
    try:
        assert cache.add(key, value, lasts) is True
    except TypeError:
        pytest.skip("this serializer cannot carry the value")
    held = cache_store.find(NAME)
    assert held is not None
    assert (held.token, held.acquired_at, held.fence) == (None, None, None)
    assert lasts or held.ttl is None
    assert set(held.owner.as_dict().values()) == {None}
    answer = asked(cache_store)
    assert isinstance(answer, Refusal)
    assert answer.holder.token is None
    assert cache_store.release(NAME, new_token()) is False
    assert cache_store.extend(NAME, new_token(), TTL_SECONDS) is False
    assert cache_store.clear(NAME, new_token()) is False
    assert cache_store.clear(NAME, digest="0" * 32) is False
    assert cache.get(key) == value
    assert cache_store.clear(NAME) is True
    assert cache.get(key) is None
    assert isinstance(asked(cache_store), Grant)
