"""What several files of tests of the stores ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis

from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests import needs
from tests.conftest import UseCaches, UseZooKeeper, five_redis_servers, made_store
from tests.servers import RedisServer
from tests.store_cases import DATABASE_CASES, OTHER_CASES, make_lease_table, params, zookeeper_store
from tests.store_cases import database_store as settings_of_store

# These import a store, and each store is tested for itself.
if TYPE_CHECKING:
    from django_tasklock.stores.database import DatabaseStore
    from django_tasklock.stores.zookeeper import ZooKeeperStore
    from tests.quorum import Five
    from tests.zookeepers import ZooKeeper

ON_SERVERS = ["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)]
ON_DATABASES = ["sqlite_alias", *ON_SERVERS]
"""fixtures of databases, as parameters of the fixture ``alias``"""


@pytest.fixture(params=ON_SERVERS)
def alias(request: pytest.FixtureRequest, use_caches: UseCaches) -> str:
    """A database with the table of the locks, which are in the store "default"."""
    alias: str = request.getfixturevalue(request.param)
    make_lease_table(alias)
    use_caches({}, {"default": settings_of_store(alias)})
    return alias


@pytest.fixture
def admin(own_redis_server: RedisServer) -> Iterator[Any]:
    """Somebody else's client of the test's own Redis."""
    with redis.Redis.from_url(own_redis_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def redis_of_file() -> Iterator[RedisServer]:
    """A Redis for the tests of one file, which may empty it and cut its connections."""
    with needs.redis(own=True) as server:
        yield server


@pytest.fixture
def five(use_caches: UseCaches) -> Iterator[Five]:
    """Five servers for this test alone, which are the members of the store "default"."""
    from tests.quorum import five_behind_proxies, use_quorum

    with five_redis_servers() as servers, five_behind_proxies(servers) as five:
        use_quorum(five, use_caches)
        yield five


@pytest.fixture
def use_zookeeper(use_caches: UseCaches, zookeeper_server: ZooKeeper) -> UseZooKeeper:
    """``use_zookeeper(hosts=None, **options)``: a `ZooKeeperStore` as the store "default".

    On ``zookeeper_server`` unless there are other hosts, with nodes that no other test uses;
    ``options`` are its OPTIONS. Returns the store.
    """

    def use(hosts: str | None = None, **options: Any) -> ZooKeeperStore:
        use_caches({}, {"default": zookeeper_store(hosts or zookeeper_server.hosts, **options)})
        store: Any = stores["default"]
        return store  # type: ignore[no-any-return]

    return use


@pytest.fixture(params=OTHER_CASES, ids=lambda case: case.id)
def other_store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    """The store "default", once for each of those that the whole contract meets at night only."""
    return made_store(request, use_caches)


@pytest.fixture(params=params(DATABASE_CASES), ids=lambda case: case.id)
def database_store(request: pytest.FixtureRequest, use_caches: UseCaches) -> DatabaseStore:
    """The store "default", a `DatabaseStore` on each database that it supports."""
    store: Any = made_store(request, use_caches)
    return store  # type: ignore[no-any-return]
