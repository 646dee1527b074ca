"""What tasks keep in their store, on a cluster: a note and a lock may be in different slots.

The tests are those of a store on Redis.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.stores import stores
from django_tasklock.stores.cluster import RedisClusterStore
from tests.clusters import Cluster
from tests.conftest import UseCaches
from tests.integration.celery.on_any_store import *  # noqa: F403
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer
from tests.store_cases import own_prefix


@pytest.fixture
def room(
    use_caches: UseCaches, redis_cluster: Cluster, redis_server: RedisServer
) -> Iterator[Mailroom]:
    use_caches({}, {"default": redis_cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    assert type(stores["default"]) is RedisClusterStore
    with mailroom(redis_server.url) as room:
        yield room
