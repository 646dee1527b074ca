"""What tasks keep in their store, on one that implements five methods only, and on one in memory.

The tests are those of a store on Redis, except where a process or a wait queue of Redis is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.stores import stores
from django_tasklock.testing import MemoryStore
from tests.conftest import UseRedis
from tests.five_methods import FiveMethodStore
from tests.integration.celery.on_any_store import *  # noqa: F403
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer


@pytest.fixture(params=[FiveMethodStore, MemoryStore])
def room(
    request: pytest.FixtureRequest, use_redis: UseRedis, redis_server: RedisServer
) -> Iterator[Mailroom]:
    kind = request.param
    use_redis(tasklock={"BACKEND": f"{kind.__module__}.{kind.__name__}"})
    assert type(stores["default"]) is kind
    with mailroom(redis_server.url) as room:
        yield room
