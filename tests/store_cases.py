"""Every store that the contract is held against."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from django.apps import apps
from django.core.management import call_command
from django.db import connections

from tests.clusters import Cluster

CacheSettings = dict[str, Any]


@dataclass(frozen=True)
class StoreCase:
    """A store under test.

    Args:
        id: as pytest shows it.
        cache: makes ``CACHES["default"]``, asking for what it needs by fixture.
        tasklock: ``TASKLOCK["default"]``, or what makes it, asking for what it needs by fixture.
        beside: makes other aliases of ``CACHES`` and of ``TASKLOCK``.
    """

    id: str
    cache: Callable[[pytest.FixtureRequest], CacheSettings]
    tasklock: dict[str, Any] | Callable[[pytest.FixtureRequest], dict[str, Any]] = field(
        default_factory=dict
    )
    beside: Callable[[pytest.FixtureRequest], tuple[CacheSettings, CacheSettings]] | None = None


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


NOWHERE = {
    "django_redis.cache.RedisCache": "redis://127.0.0.1:1",
    "django.core.cache.backends.redis.RedisCache": "redis://127.0.0.1:1",
    "django.core.cache.backends.memcached.PyMemcacheCache": "127.0.0.1:1",
}
"""for each cache with a server, where none listens"""


def own_prefix() -> str:
    return f"test-{secrets.token_hex(6)}"


def make_key(key: str, key_prefix: str, version: int) -> str:
    """A KEY_FUNCTION of one's own."""
    return f"{{{key_prefix}}}/{key}/v{version}"


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


def _memcached(request: pytest.FixtureRequest) -> CacheSettings:
    return {
        "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
        "LOCATION": request.getfixturevalue("memcached_server"),
        "KEY_PREFIX": own_prefix(),
    }


def _files(request: pytest.FixtureRequest) -> CacheSettings:
    return {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": str(request.getfixturevalue("tmp_path")),
    }


@contextmanager
def lock_table() -> Iterator[tuple[CacheSettings, Callable[[str], None]]]:
    """A cache in a table of the database "default", and what executes a statement there."""

    def execute(sql: str) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql)

    backend = "django.core.cache.backends.db.DatabaseCache"
    call_command("createcachetable", "locks_cached", verbosity=0)
    try:
        yield {"BACKEND": backend, "LOCATION": "locks_cached"}, execute
    finally:
        execute("DROP TABLE locks_cached")


def _table(request: pytest.FixtureRequest) -> CacheSettings:
    table = lock_table()
    request.addfinalizer(lambda: table.__exit__(None, None, None))
    return table.__enter__()[0]


def _lease_table(fixture: str) -> Callable[[pytest.FixtureRequest], CacheSettings]:
    """The table of `DatabaseStore` in the database of a fixture; the store uses no cache."""

    def cache(request: pytest.FixtureRequest) -> CacheSettings:
        make_lease_table(request.getfixturevalue(fixture))
        return _locmem(request)

    return cache


def make_lease_table(alias: str) -> None:
    """As ``manage.py migrate --database=ALIAS``; if it was done before, the table is emptied."""
    models = apps.get_app_config("django_tasklock").get_models()
    tables = {model._meta.db_table for model in models if model._meta.managed}
    if not tables <= {*connections[alias].introspection.table_names()}:
        call_command("migrate", "django_tasklock", database=alias, verbosity=0)
    with connections[alias].cursor() as cursor:
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")


def database_store(alias: str, **options: Any) -> dict[str, Any]:
    """``TASKLOCK["default"]`` on the database of this alias."""
    return {
        "BACKEND": "django_tasklock.stores.database.DatabaseStore",
        "OPTIONS": {"DATABASE": alias, **options},
    }


def _cluster(request: pytest.FixtureRequest) -> dict[str, Any]:
    """`RedisClusterStore`, with keys that nothing else uses."""
    cluster: Cluster = request.getfixturevalue("redis_cluster")
    return cluster.settings() | {"KEY_PREFIX": own_prefix()}


# Other threads and processes must see the table.
ON_DATABASE = pytest.mark.django_db(transaction=True)

CACHE_CASES = [
    StoreCase("redis-pickle", _django_redis()),
    StoreCase(
        "redis-json", _django_redis(SERIALIZER="django_redis.serializers.json.JSONSerializer")
    ),
    StoreCase("redis-keys", _django_redis_with_keys, {"KEY_PREFIX": "our:locks"}),
    StoreCase("redis-no-prefix", _django_redis(), {"KEY_PREFIX": ""}),
    StoreCase("redis-of-django", _djangos_redis),
    StoreCase("locmem", _locmem),
    StoreCase("memcached", _memcached),
]
"""Parameters of the fixture ``cache_store``: stores whose locks are keys of a cache."""

DATABASE_CASES = [
    pytest.param(
        StoreCase("database-store-sqlite", _locmem, database_store("default")), marks=ON_DATABASE
    ),
    StoreCase(
        "database-store-postgres", _lease_table("postgres_alias"), database_store("postgres")
    ),
    StoreCase("database-store-mariadb", _lease_table("mariadb_alias"), database_store("mariadb")),
]
"""Parameters of the fixture ``database_store``."""


def zookeeper_store(hosts: str, **options: Any) -> dict[str, Any]:
    """``TASKLOCK["default"]`` on the ZooKeeper at ``hosts``, with nodes that nothing else uses."""
    return {
        "BACKEND": "django_tasklock.stores.zookeeper.ZooKeeperStore",
        "KEY_PREFIX": own_prefix(),
        "OPTIONS": {"HOSTS": hosts, **options},
    }


def _zookeeper(request: pytest.FixtureRequest) -> dict[str, Any]:
    return zookeeper_store(request.getfixturevalue("zookeeper_server").hosts)


ZOOKEEPER_CASE = StoreCase("zookeeper", _locmem, _zookeeper)

MEMORY_STORE = "django_tasklock.stores.memory.MemoryStore"

MEMORY_CASE = StoreCase("memory", _locmem, {"BACKEND": MEMORY_STORE})


def _five_redis(request: pytest.FixtureRequest) -> tuple[CacheSettings, CacheSettings]:
    return members([server.url for server in request.getfixturevalue("five_servers")])


def _three_in_memory(request: pytest.FixtureRequest) -> tuple[CacheSettings, CacheSettings]:
    return {}, {alias: {"BACKEND": MEMORY_STORE} for alias in "abc"}


def members(urls: Sequence[str], **cache_options: Any) -> tuple[CacheSettings, CacheSettings]:
    """``CACHES`` and ``TASKLOCK`` of a RedisStore for each URL: "a", "b" and so on."""
    aliases = "abcdefgh"[: len(urls)]
    caches = {
        alias: redis_cache(url, **cache_options) for alias, url in zip(aliases, urls, strict=True)
    }
    return caches, {alias: {"CACHE": alias} for alias in aliases}


def quorum_store(aliases: Sequence[str] = "abcde", **options: Any) -> dict[str, Any]:
    """``TASKLOCK["default"]`` of a quorum. A restarted member counts at once, unless LONGEST_TTL is
    given: the servers of tests are new."""
    return {
        "BACKEND": "django_tasklock.stores.quorum.QuorumStore",
        "OPTIONS": {"STORES": list(aliases), "LONGEST_TTL": None, **options},
    }


QUORUM_CASE = StoreCase("quorum", _locmem, quorum_store(TIMEOUT=10.0), beside=_five_redis)
"""no member is harmed: one that takes long has to wait for the processor"""

MEMORY_QUORUM_CASE = StoreCase(
    "quorum-of-memory", _locmem, quorum_store("abc", TIMEOUT=10.0), beside=_three_in_memory
)

CLUSTER_CASE = StoreCase("redis-cluster", _locmem, _cluster)

STORE_CASES = [
    *CACHE_CASES,
    *DATABASE_CASES,
    CLUSTER_CASE,
    ZOOKEEPER_CASE,
    QUORUM_CASE,
    MEMORY_QUORUM_CASE,
    MEMORY_CASE,
]
"""Every store there is."""

BY_DAY = {
    "redis-pickle", "redis-of-django", "memory", "locmem", "database-store-sqlite",
    "database-store-postgres", "quorum-of-memory",
}  # fmt: skip
"""cases that `make test` runs: of each kind of store that most projects have, one"""

NIGHTLY_ONLY = {"database-store-mariadb"}
"""a case of which not even `OTHER_CASES` has a test by day: it needs a server of its own"""


def params(cases: Sequence[Any], by_day: Container[str] = BY_DAY) -> list[Any]:
    """The cases as parameters of a fixture: those that are not for the day are marked nightly."""
    found = []
    for case in cases:
        param = case if isinstance(case, ParameterSet) else pytest.param(case)
        at_night = () if _id(param) in by_day else (pytest.mark.nightly,)
        found.append(pytest.param(*param.values, marks=(*param.marks, *at_night)))
    return found


def _id(case: Any) -> str:
    (value,) = case.values if isinstance(case, ParameterSet) else (case,)
    assert isinstance(value, StoreCase)
    return value.id


OTHER_CASES = [
    *(case for case in STORE_CASES if _id(case) not in BY_DAY | NIGHTLY_ONLY),
    StoreCase("files", _files),
    pytest.param(StoreCase("table", _table), marks=ON_DATABASE),
]
"""Parameters of the fixture ``other_store``: by day they have a handful of tests each. Files and
tables of Django's cache have no others: they cannot do all that the contract asks."""
