"""The caches that `RedisStore` serves, and the ways in which they reach their server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches

from django_tasklock import locks
from django_tasklock.stores import stores
from tests import needs
from tests.agent import run_python
from tests.conftest import UseCaches, UseRedis
from tests.servers import NoRedis, RedisServer, free_port, own_redis
from tests.steps import LONG, taken, waiter
from tests.store_cases import redis_cache
from tests.tls import Tls


@pytest.mark.parametrize(
    "options",
    [
        {"CONNECTION_POOL_KWARGS": {"protocol": 3}},
        {"CONNECTION_POOL_KWARGS": {"max_connections": 1}},
        {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool"},
        {"CONNECTION_POOL_KWARGS": {"decode_responses": False, "health_check_interval": 1}},
        {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"},
        {"COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor"},
        {"IGNORE_EXCEPTIONS": True},
    ],
    ids=str,
)
def test_with_options(use_redis: UseRedis, options: dict[str, Any]) -> None:
    # Given a cache of django-redis with these OPTIONS
    use_redis(**options)

    # I expect everything to work that a lock does
    assert_locks_work()


def assert_locks_work() -> None:
    """They exclude, are renewed, are handed over, and are seen."""
    lease = taken("video:1")
    assert locks.acquire("video:1") is None
    assert [info.token for info in locks.list()] == [lease.token]
    following = waiter("video:1", 1)
    assert lease.extend()
    assert lease.release()
    assert following.result().release()
    assert locks.count() == 0


def test_by_a_unix_socket(use_redis: UseRedis, tmp_path: Path) -> None:
    try:
        with own_redis(needs_own=True, options=("--unixsocket", str(tmp_path / "redis.sock"))):
            use_redis(f"unix://{tmp_path}/redis.sock?db=2")
            assert_locks_work()
    except NoRedis as error:
        needs.missing(str(error))


def test_with_tls(use_redis: UseRedis, tmp_path: Path) -> None:
    with Tls.needed(tmp_path) as tls:
        options = {"tls-port": str(free_port())} | tls.directives()
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with own_redis(needs_own=True, options=words):
            url = f"rediss://127.0.0.1:{options['tls-port']}/0"
            use_redis(url, CONNECTION_POOL_KWARGS=tls.client())
            assert_locks_work()


def test_a_cache_of_django_valkey_is_served(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    pytest.importorskip("django_valkey")
    url = redis_server.url.replace("redis://", "valkey://")
    cache = redis_cache(url) | {"BACKEND": "django_valkey.cache.ValkeyCache"}
    use_caches({"default": cache}, {"default": {}})
    assert_locks_work()
    lease = taken("video:1")
    assert lease.token in caches["default"].get("lock:video:1")
    assert caches["default"].add("lock:video:1", "theirs") in (None, False)


def test_stores_on_one_cache_have_locks_of_their_own(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    prefixes = {"default": {}, "other": {"KEY_PREFIX": "tasklock"}, "bare": {"KEY_PREFIX": ""}}
    use_caches({"default": redis_cache(redis_server.url)}, prefixes)
    for alias in prefixes:
        assert locks.using(alias).acquire("video:1", ttl=LONG)
        assert stores[alias].reserve("queued task", alias, LONG) is None
    for alias in prefixes:
        assert [info.name for info in locks.using(alias).list()] == ["video:1"]
        assert stores[alias].get_note("queued task") == alias
    assert caches["default"].get("video:1") != caches["default"].get("lock:video:1")


EACH_VERB = """
import sys
sys.modules["hiredis"] = None

from concurrent.futures import ThreadPoolExecutor
from django_tasklock import lock, locks

def work():
    with lock("video:1", wait=30):
        return locks.is_locked("video:1")

with ThreadPoolExecutor(3) as threads:
    results = [thread.result() for thread in [threads.submit(work) for _ in range(3)]]
assert results == [True] * 3, results
with lock(["video:1", "video:2"]), lock("gpu", slots=2):
    assert len(locks.list("video:")) == 2
    assert locks.acquire("video:1") is None
lease = locks.acquire("video:1")
handle = lease.detach()
lease = locks.adopt(handle)
assert lease.extend(30)
assert locks.clear("video:1")
assert {event.kind for event in locks.history()} >= {"refused", "cleared"}
"""


def test_each_verb_without_hiredis(use_redis: UseRedis) -> None:
    use_redis()
    run_python(EACH_VERB)
