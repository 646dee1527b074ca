"""Processes that contend for one lock in Memcached while they are killed at random."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.cache import caches

from tests import contenders
from tests.conftest import UseCaches
from tests.steps import taken
from tests.store_cases import own_prefix
from tests.storm import storm


def on_memcached(server: str, use_caches: UseCaches) -> None:
    """The store "default" on this server, with keys that nothing else uses."""
    backend = "django.core.cache.backends.memcached.PyMemcacheCache"
    cache = {"BACKEND": backend, "LOCATION": server, "KEY_PREFIX": own_prefix()}
    use_caches({"default": cache})


@pytest.mark.parametrize(
    ("processes", "rounds", "kills"),
    [(8, 40, 12), pytest.param(8, 100, 30, marks=pytest.mark.slow)],
)
def test_no_two_holders_overlap_and_the_dead_hold_nothing(
    memcached_server: str,
    use_caches: UseCaches,
    tmp_path: Path,
    processes: int,
    rounds: int,
    kills: int,
) -> None:
    on_memcached(memcached_server, use_caches)
    assert storm(tmp_path, processes, rounds, kills, {contenders.ASKING: "yes"}).killed


def test_an_emptied_memcached_has_forgotten_the_lock(
    memcached_server: str, use_caches: UseCaches
) -> None:
    """As one that was started again."""
    on_memcached(memcached_server, use_caches)
    lease = taken("video:1")
    caches["default"].delete("lock:video:1")
    assert taken("video:1").held
    assert lease.held, "nobody has asked the store yet"
    assert lease.extend() is False
    assert not lease.held
