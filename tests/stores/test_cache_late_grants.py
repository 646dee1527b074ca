"""`CacheStore`: a grant that comes late, and is asked for once more."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.cache import CacheStore
from tests.conftest import UseCaches
from tests.store_cases import own_prefix


def test_an_acquire_with_the_token_of_an_old_lease_leaves_the_next_holder_alone(
    memcached_server: str, use_caches: UseCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_caches(
        {
            "default": {
                "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
                "LOCATION": memcached_server,
                "KEY_PREFIX": own_prefix(),
            }
        }
    )
    store = stores["default"]
    assert isinstance(store, CacheStore)
    first, second, ttl = new_token(), new_token(), 0.5
    assert isinstance(store.acquire("video:1", first, ttl, owner_record()), Grant)
    time.sleep(ttl)  # The grant comes late; the service asks again, with the same token.

    real = CacheStore._read
    granted: list[Grant | None] = []

    def read(self: CacheStore, name: str) -> Any:
        held = real(self, name)
        if not granted:
            granted.append(None)
            # The key is there for a moment more. Its reply is on its way for longer than that.
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                answer = store.acquire("video:1", second, 60, owner_record())
                if isinstance(answer, Grant):
                    granted.append(answer)
                    break
                time.sleep(0.05)
        return held

    monkeypatch.setattr(CacheStore, "_read", read)
    again = store.acquire("video:1", first, ttl, owner_record())
    assert len(granted) == 2
    assert not isinstance(again, Grant), "two hold the lock"
