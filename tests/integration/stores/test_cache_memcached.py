"""Names that Memcached cannot hold, and one of several servers that is dead."""

from __future__ import annotations

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.tokens import new_token
from tests import needs
from tests.conftest import UseCaches
from tests.steps import taken

BACKEND = "django.core.cache.backends.memcached.PyMemcacheCache"


@pytest.fixture(autouse=True)
def on_memcached(use_caches: UseCaches, memcached_server: str) -> None:
    use_caches({"default": {"BACKEND": BACKEND, "LOCATION": memcached_server}}, {"default": {}})


def test_a_name_of_too_many_bytes_is_no_outage() -> None:
    """A name may have 200 characters, and a key of Memcached 250 bytes."""
    with pytest.raises(ValueError, match="cannot hold a lock of this name: Key is too long"):
        locks.acquire("é" * 150)


def test_a_name_of_as_many_characters_in_one_byte_each_is_a_lock() -> None:
    assert taken("e" * 200).release()


def test_the_locks_of_a_dead_server_are_neither_free_nor_held(
    use_caches: UseCaches, memcached_server: str
) -> None:
    """The other server answers, and says nothing of them. For a second after an error the client
    does not try the dead one again, and finds nothing."""
    with needs.memcached() as dying:
        servers = [memcached_server, dying]
        use_caches({"default": {"BACKEND": BACKEND, "LOCATION": servers}}, {"default": {}})
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
