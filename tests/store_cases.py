"""Every store that the contract is held against."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, models
from django.test.utils import override_settings

CacheSettings = dict[str, Any]


@dataclass(frozen=True)
class StoreCase:
    """A store under test.

    Args:
        id: as pytest shows it.
        cache: makes ``CACHES["default"]``, asking for what it needs by fixture.
        tasklock: ``TASKLOCK["default"]``.
        settings: other settings that it needs.
    """

    id: str
    cache: Callable[[pytest.FixtureRequest], CacheSettings]
    tasklock: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def redis_cache(url: str, **options: Any) -> CacheSettings:
    """django-redis on ``url`` with its OPTIONS, and keys that nothing else uses.

    With a socket timeout, which redis-py has by default since version 8 only.
    """
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": url,
        "KEY_PREFIX": own_prefix(),
        "OPTIONS": {"SOCKET_TIMEOUT": 5.0} | options,
    }


def own_prefix() -> str:
    return f"test-{secrets.token_hex(6)}"


def make_key(key: str, key_prefix: str, version: int) -> str:
    """A KEY_FUNCTION of one's own."""
    return f"{{{key_prefix}}}/{key}/v{version}"


class CacheTableRouter:
    """Sends the cache table, and nothing else, to PostgreSQL."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return "postgres" if model._meta.app_label == "django_cache" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "postgres" if app_label == "django_cache" else None


def _django_redis(**options: Any) -> Callable[[pytest.FixtureRequest], CacheSettings]:
    def cache(request: pytest.FixtureRequest) -> CacheSettings:
        return redis_cache(request.getfixturevalue("redis_server").url, **options)

    return cache


def _django_redis_with_keys(request: pytest.FixtureRequest) -> CacheSettings:
    return _django_redis()(request) | {
        "VERSION": 7,
        "KEY_FUNCTION": "tests.store_cases.make_key",
        "KEY_PREFIX": f"étude-{own_prefix()}",
    }


def _djangos_redis(request: pytest.FixtureRequest) -> CacheSettings:
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": request.getfixturevalue("redis_server").url,
        "KEY_PREFIX": own_prefix(),
    }


def _locmem(request: pytest.FixtureRequest) -> CacheSettings:
    return {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": own_prefix(),
    }


def _file_based(request: pytest.FixtureRequest) -> CacheSettings:
    folder: Path = request.getfixturevalue("tmp_path")
    return {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": str(folder / "cache"),
    }


def _memcached(request: pytest.FixtureRequest) -> CacheSettings:
    return {
        "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
        "LOCATION": request.getfixturevalue("memcached_server"),
        "KEY_PREFIX": own_prefix(),
    }


def _database(request: pytest.FixtureRequest) -> CacheSettings:
    return _cache_table(request, "default")


def _postgres(request: pytest.FixtureRequest) -> CacheSettings:
    return _cache_table(request, request.getfixturevalue("postgres_alias"))


def _cache_table(request: pytest.FixtureRequest, alias: str) -> CacheSettings:
    table = f"cache_{secrets.token_hex(6)}"
    cache = {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": table}
    with override_settings(CACHES={"default": cache}):
        call_command("createcachetable", table, database=alias, verbosity=0)

    def drop() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"DROP TABLE {table}")

    request.addfinalizer(drop)
    return cache


# Other threads and processes must see the table.
ON_DATABASE = pytest.mark.django_db(transaction=True)

STORE_CASES = [
    StoreCase("redis-pickle", _django_redis()),
    StoreCase(
        "redis-json", _django_redis(SERIALIZER="django_redis.serializers.json.JSONSerializer")
    ),
    StoreCase(
        "redis-msgpack",
        _django_redis(SERIALIZER="django_redis.serializers.msgpack.MSGPackSerializer"),
    ),
    StoreCase(
        "redis-compressed",
        _django_redis(COMPRESSOR="django_redis.compressors.zlib.ZlibCompressor"),
    ),
    StoreCase("redis-keys", _django_redis_with_keys, {"KEY_PREFIX": "our:locks"}),
    StoreCase("redis-no-prefix", _django_redis(), {"KEY_PREFIX": ""}),
    StoreCase("redis-of-django", _djangos_redis),
    StoreCase("locmem", _locmem),
    pytest.param(StoreCase("database-sqlite", _database), marks=ON_DATABASE),
    pytest.param(
        StoreCase(
            "database-postgres",
            _postgres,
            settings={"DATABASE_ROUTERS": ["tests.store_cases.CacheTableRouter"]},
        ),
        marks=ON_DATABASE,
    ),
    StoreCase("file-based", _file_based),
    StoreCase("memcached", _memcached),
]
"""Parameters of the fixture ``store``."""
