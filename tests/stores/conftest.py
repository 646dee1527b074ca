"""What several files of tests of the stores ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests import needs
from tests.conftest import UseCaches
from tests.servers import NoRedis, RedisServer, own_redis
from tests.store_cases import database_store, make_lease_table

ON_SERVERS = ["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)]
ON_DATABASES = ["sqlite_alias", *ON_SERVERS]
"""fixtures of databases, as parameters of the fixture ``alias``"""


@pytest.fixture(params=ON_SERVERS)
def alias(request: pytest.FixtureRequest, use_caches: UseCaches) -> str:
    """A database with the table of the locks, which are in the store "default"."""
    alias: str = request.getfixturevalue(request.param)
    make_lease_table(alias)
    use_caches({}, {"default": database_store(alias)})
    return alias


@pytest.fixture
def admin(own_redis_server: RedisServer) -> Iterator[Any]:
    """Somebody else's client of the test's own Redis."""
    with redis.Redis.from_url(own_redis_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def redis_of_file() -> Iterator[RedisServer]:
    """A Redis for the tests of one file, which may empty it and cut its connections."""
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))
