"""Fixtures for tests of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.servers import RedisServer


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer) -> Iterator[Mailroom]:
    """A worker without a process, on Redis: it takes messages when a test says so."""
    use_redis()
    with mailroom(redis_server.url) as room:
        yield room
