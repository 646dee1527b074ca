"""Async views that wait for locks, on a site that one process of uvicorn serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from django_tasklock import locks
from tests.conftest import UseRedis
from tests.servers import free_port
from tests.steps import LONG, taken
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

REQUESTS = 300
NAMES = [f"video-{number}" for number in range(10)]
THREADS = 8
"""those of the two lanes of a store, and one each that listens and that watches owners. Django has
a thread of its own for each request that is under way"""


class Site:
    """``tests/async_site.py`` on uvicorn."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process

    def state(self) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", "/state/")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()

    def serves(self) -> bool:
        try:
            return bool(self.state())
        except OSError:
            return False

    async def ask(self, path: str) -> Request:
        """Send a request."""
        request = Request(*await asyncio.open_connection("127.0.0.1", self.port))
        lines = (f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", "", "")
        request.writer.write("\r\n".join(lines).encode())
        await request.writer.drain()
        return request

    async def get(self, path: str) -> str:
        return await (await self.ask(path)).answer()


class Request(NamedTuple):
    """One that was sent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> str:
        text = (await self.reader.read()).decode()
        await self.go_away()
        return text.partition("\r\n\r\n")[2]

    async def go_away(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@pytest.fixture
def site(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]], tmp_path: Path
) -> Iterator[Site]:
    use_redis()
    port = free_port()
    environment = process_env() | {"TASKLOCK_TEST_URLCONF": "tests.async_site"}
    with (tmp_path / "uvicorn.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "uvicorn", "--host=127.0.0.1", f"--port={port}",
                "--lifespan=off", "--backlog=2048", "tests.async_site:application",
            ],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        site = Site(port, process)
        try:
            until(lambda: process.poll() is not None or site.serves(), "uvicorn", 60)
            assert process.poll() is None, (tmp_path / "uvicorn.log").read_text()
            yield site
        finally:
            process.kill()
            process.wait()


def waiters(names: list[str]) -> int:
    return sum(info.waiters or 0 for name in names if (info := locks.get(name)) is not None)


def test_requests_wait_without_threads(site: Site) -> None:
    held = [taken(name) for name in NAMES]

    async def work() -> list[str]:
        asked = [
            asyncio.create_task(site.get(f"/block/{NAMES[number % len(NAMES)]}/"))
            for number in range(REQUESTS)
        ]
        await asyncio.to_thread(until, lambda: waiters(NAMES) == REQUESTS, "the queues", 60)
        # I expect a request that needs no lock to be answered meanwhile, and no thread for each
        state = await asyncio.to_thread(site.state)
        assert 0 < state["threads"] <= THREADS
        for lease in held:
            assert lease.release()
        return await asyncio.gather(*asked)

    assert asyncio.run(work()) == ["alone"] * REQUESTS
    until(lambda: locks.count() == 0, "the end of all locks")


def test_clients_that_go_away_leave_nothing(site: Site) -> None:
    held = taken("view:1")

    async def work() -> None:
        waiting = [await site.ask("/view/1/") for _ in range(20)]
        holding = await site.ask("/hold/2/")
        await asyncio.to_thread(until, lambda: waiters(["view:1"]) == 20, "the queue")
        await asyncio.to_thread(until, lambda: locks.is_locked("view:2"), "the holder")
        for request in [holding, *waiting[::2]]:
            await request.go_away()
        # I expect those who went away to leave the queue, and the holder's lock to be free
        await asyncio.to_thread(until, lambda: waiters(["view:1"]) == 10, "the shorter queue")
        await asyncio.to_thread(until, lambda: not locks.is_locked("view:2"), "the free lock")
        assert held.release()
        for request in waiting[1::2]:
            assert await request.answer() == "alone"

    asyncio.run(work())
    until(lambda: locks.count() == 0, "the end of all locks")


@pytest.mark.nightly
def test_a_killed_server_leaves_nothing(site: Site) -> None:
    async def work() -> None:
        holding = await site.ask("/hold/1/")
        await asyncio.to_thread(until, lambda: locks.is_locked("view:1"), "the holder")
        waiting = [await site.ask("/view/1/") for _ in range(5)]
        await asyncio.to_thread(until, lambda: waiters(["view:1"]) == 5, "the queue")
        site.process.kill()
        site.process.wait()
        # I expect the lock to be had well before the ttl is over, by a task of this process
        lease = await locks.aacquire("view:1", ttl=LONG, wait=LONG / 3)
        assert lease is not None
        assert await lease.arelease()
        for request in [holding, *waiting]:
            await request.go_away()

    asyncio.run(work())
    until(lambda: not locks.is_locked("view:1"), "the free lock")
