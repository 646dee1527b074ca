"""Memcached: names that it cannot hold, values of old code, one of several servers that is dead, a
grant that comes late."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from tests import needs
from tests.conftest import UseCaches
from tests.steps import LONG, taken

BACKENDS = {"pymemcache": "PyMemcacheCache", "pylibmc": "PyLibMCCache"}


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"{request.param} has no wheel here")
    return f"django.core.cache.backends.memcached.{BACKENDS[request.param]}"


@pytest.fixture(autouse=True)
def on_memcached(use_caches: UseCaches, memcached_server: str, backend: str) -> None:
    use_caches({"default": {"BACKEND": backend, "LOCATION": memcached_server}}, {"default": {}})


def test_a_name_of_too_many_bytes_is_no_outage() -> None:
    """A name may have 200 characters, and a key of Memcached 250 bytes."""
    with pytest.raises(ValueError, match="cannot hold a lock of this name: its key has 308 b"):
        locks.acquire("é" * 150)
    assert taken("e" * 200).release()


def test_what_old_code_has_set_is_a_lock_whatever_it_is() -> None:
    """Whether the server answers is asked by an ``incr``, which these cannot be."""
    for value in (None, "a text", [1], 7):
        cache.set("lock:video:1", value, LONG)
        assert locks.is_locked("video:1")
        assert locks.acquire("video:1") is None
        assert locks.clear("video:1")
        assert not locks.is_locked("video:1")


def test_the_locks_of_a_dead_server_are_neither_free_nor_held(
    use_caches: UseCaches, memcached_server: str, backend: str
) -> None:
    """The other server answers, and says nothing of them. For a second after an error the client
    does not try the dead one again, and finds nothing."""
    with needs.memcached() as dying:
        servers = [memcached_server, dying]
        use_caches({"default": {"BACKEND": backend, "LOCATION": servers}}, {"default": {}})
        leases = [taken(f"video:{new_token()}") for _ in range(20)]
    unavailable = 0
    for lease in leases:
        try:
            assert lease.extend()
        except StoreUnavailable:
            unavailable += 1
            for ask in (locks.acquire, locks.is_locked, locks.clear):
                with pytest.raises(StoreUnavailable):
                    ask(lease.name)
        else:
            assert locks.is_locked(lease.name)
    assert 0 < unavailable < 20


def test_an_acquire_with_the_token_of_an_old_lease_leaves_the_next_holder_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grant came late, and the service asks again, with the same token. The key is there for a
    moment more; the reply that says so is on its way for longer than that."""
    store: Any = stores["default"]
    name, first, ttl, real = new_token(), new_token(), 0.05, store._entry
    others: list[Lease] = []
    assert isinstance(store.acquire([name], first, ttl, owner_record()), Grant)
    time.sleep(ttl)

    def read(name: str) -> Any:
        entry = real(name)
        if not others:
            monkeypatch.undo()
            others.append(taken(name, wait=5))
        return entry

    monkeypatch.setattr(store, "_entry", read)
    again = store.acquire([name], first, ttl, owner_record())
    assert others
    assert not isinstance(again, Grant), "two hold the lock"
