"""What Memcached cannot hold is said of the name, and not called an outage."""

from __future__ import annotations

import pytest

from django_tasklock import locks
from tests.conftest import UseCaches
from tests.steps import taken


@pytest.fixture(autouse=True)
def on_memcached(use_caches: UseCaches, memcached_server: str) -> None:
    backend = "django.core.cache.backends.memcached.PyMemcacheCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": memcached_server}}, {"default": {}})


def test_a_name_of_too_many_bytes_is_no_outage() -> None:
    """A name may have 200 characters, and a key of Memcached 250 bytes."""
    with pytest.raises(ValueError, match="cannot hold a lock of this name: Key is too long"):
        locks.acquire("é" * 150)


def test_a_name_of_as_many_characters_in_one_byte_each_is_a_lock() -> None:
    assert taken("e" * 200).release()
