"""The caches that `RedisStore` serves, and the ways in which they reach their server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches

from django_tasklock import locks
from django_tasklock.stores import stores
from tests import needs
from tests.conftest import UseCaches, UseRedis
from tests.servers import NoRedis, RedisServer, free_port, own_redis
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.store_cases import redis_cache
from tests.tls import Tls
from tests.waiting import until


def assert_locks_work() -> None:
    """They exclude, are renewed, are handed over, and are seen."""
    lease = taken("video:1")
    assert locks.acquire("video:1") is None
    assert [info.token for info in locks.list()] == [lease.token]
    waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=LONG))
    until(lambda: waiting("video:1") == 1)
    assert lease.extend()
    assert lease.release()
    won = waiter.result()
    assert won is not None
    assert won.release()
    assert locks.count() == 0


@contextmanager
def started(*options: str) -> Iterator[None]:
    """A server with options of its own."""
    try:
        with own_redis(needs_own=True, options=options):
            yield
    except NoRedis as error:
        if "tls-port" in str(error):
            pytest.skip("this redis-server was built without TLS")
        needs.missing(str(error))


class TestConnections:
    def test_by_a_unix_socket(self, use_redis: UseRedis, tmp_path: Path) -> None:
        with started("--unixsocket", str(tmp_path / "redis.sock")):
            use_redis(f"unix://{tmp_path}/redis.sock?db=2")
            assert_locks_work()

    def test_with_tls(self, use_redis: UseRedis, tmp_path: Path) -> None:
        if shutil.which("openssl") is None:
            needs.missing("openssl")
        tls, port = Tls.made_in(tmp_path), free_port()
        words = {f"--{name}": value for name, value in tls.directives().items()}
        with started("--tls-port", str(port), *(part for word in words.items() for part in word)):
            use_redis(f"rediss://127.0.0.1:{port}/0", CONNECTION_POOL_KWARGS=tls.client())
            assert_locks_work()

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
    def test_with_options(self, use_redis: UseRedis, options: dict[str, Any]) -> None:
        use_redis(**options)
        assert_locks_work()


def test_a_cache_of_django_valkey_is_served(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    pytest.importorskip("django_valkey")
    backend = "django_valkey.cache.ValkeyCache"
    url = redis_server.url.replace("redis://", "valkey://")
    use_caches({"default": redis_cache(url) | {"BACKEND": backend}}, {"default": {}})
    assert_locks_work()
    lease = taken("video:1")
    assert lease.token in caches["default"].get("lock:video:1")
    assert caches["default"].add("lock:video:1", "theirs") in (None, False)


def test_stores_on_one_cache_have_locks_of_their_own(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url)},
        {"default": {}, "other": {"KEY_PREFIX": "tasklock"}, "bare": {"KEY_PREFIX": ""}},
    )
    for alias in ("default", "other", "bare"):
        assert locks.using(alias).acquire("video:1", ttl=LONG)
        assert stores[alias].reserve("queued task", alias, LONG) is None
    for alias in ("default", "other", "bare"):
        assert [info.name for info in locks.using(alias).list()] == ["video:1"]
        assert stores[alias].get_note("queued task") == alias
    assert caches["default"].get("video:1") != caches["default"].get("lock:video:1")
