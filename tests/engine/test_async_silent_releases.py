"""Many asyncio tasks release while the store is silent: what they have done counts.

More than the threads for their calls, so that some of the releases do not begin in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_tasklock import lock
from django_tasklock._engine.aio import driving
from django_tasklock.views import lock_view
from tests.conftest import UseRedis
from tests.servers import RedisServer

pytestmark = pytest.mark.nightly

TASKS = 6


@pytest.fixture
def server(
    own_redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisServer]:
    use_redis(own_redis_server.url, SOCKET_TIMEOUT=3.0)
    # Not 5 s, beside a socket's 5 s.
    monkeypatch.setattr(driving, "LATE_SECONDS", 2.0)
    yield own_redis_server
    own_redis_server.resume()


class Bodies:
    """They end when all of them have begun, and the server is silent."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._begun = 0
        self._end = asyncio.Event()

    async def body(self) -> None:
        self._begun += 1
        if self._begun == TASKS:
            self._server.pause()
            self._end.set()
        await self._end.wait()


def outcomes(
    server: RedisServer, make: Callable[[Bodies], Callable[[int], Coroutine[Any, Any, Any]]]
) -> list[Any]:
    """What the tasks return or raise."""

    async def main() -> list[Any]:
        work = make(Bodies(server))
        return await asyncio.gather(*map(work, range(TASKS)), return_exceptions=True)

    return asyncio.run(main())


def test_views_return_their_responses(server: RedisServer) -> None:
    def make(bodies: Bodies) -> Callable[[int], Coroutine[Any, Any, Any]]:
        @lock_view("pay:{order_id}", ttl=60)
        async def pay(request: Any, order_id: int) -> HttpResponse:
            await bodies.body()
            return HttpResponse("paid")

        return lambda number: pay(RequestFactory().post("/"), order_id=number)

    answers = outcomes(server, make)
    assert [getattr(answer, "status_code", answer) for answer in answers] == [200] * TASKS


def test_a_block_that_fails_raises_its_own_error(server: RedisServer) -> None:
    def make(bodies: Bodies) -> Callable[[int], Coroutine[Any, Any, Any]]:
        async def work(number: int) -> None:
            async with lock(f"pay:{number}", ttl=60):
                await bodies.body()
                raise LookupError(number)

        return work

    assert [type(answer) for answer in outcomes(server, make)] == [LookupError] * TASKS
