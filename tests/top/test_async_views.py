"""Async views that wait for locks, on a site that one process of uvicorn serves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_tasklock import locks
from tests.conftest import UseRedis
from tests.servers import free_port
from tests.steps import LONG, taken, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

REQUESTS = 300
NAMES = [f"video-{number}" for number in range(10)]
THREADS = 8
"""those that ask a store and that release, and one each that renews and that listens. Django has a
thread of its own for each request that is under way"""


class Site:
    """``tests/async_site.py`` on uvicorn."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process

    def ask(self, path: str) -> socket.socket:
        """Send a request."""
        request = socket.create_connection(("127.0.0.1", self.port), timeout=LONG)
        request.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return request

    def threads(self) -> int:
        """How many threads of ours it has."""
        return int(json.loads(answer_of(self.ask("/state/")))["threads"])


def answer_of(request: socket.socket) -> str:
    with request, request.makefile() as stream:
        return stream.read().partition("\n\n")[2]


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
    said = (tmp_path / "uvicorn.log").read_text
    try:
        until(lambda: process.poll() is not None or "running on" in said(), "uvicorn")
        assert process.poll() is None, said()
        yield Site(port, process)
    finally:
        process.kill()
        process.wait()


def test_requests_wait_without_threads(site: Site) -> None:
    held = [taken(name) for name in NAMES]
    requests = [site.ask(f"/block/{NAMES[number % len(NAMES)]}/") for number in range(REQUESTS)]
    until(lambda: sum(map(waiting, NAMES)) == REQUESTS, "the queues")
    # I expect a request that needs no lock to be answered meanwhile, and no thread for each
    assert 0 < site.threads() <= THREADS
    for lease in held:
        assert lease.release()
    assert [answer_of(request) for request in requests] == ["alone"] * REQUESTS
    until(lambda: locks.count() == 0, "the end of all locks")


def test_clients_that_go_away_leave_nothing(site: Site) -> None:
    held = taken("view:1")
    requests = [site.ask("/view/1/") for _ in range(20)]
    holding = site.ask("/hold/2/")
    until(lambda: waiting("view:1") == 20 and locks.is_locked("view:2"), "the queue, the holder")
    for request in (holding, *requests[::2]):
        request.close()
    # I expect those who went away to leave the queue, and the holder's lock to be free
    until(lambda: waiting("view:1") == 10, "the shorter queue")
    until(lambda: not locks.is_locked("view:2"), "the free lock")
    assert held.release()
    assert [answer_of(request) for request in requests[1::2]] == ["alone"] * 10
    until(lambda: locks.count() == 0, "the end of all locks")


@pytest.mark.nightly
def test_a_killed_server_leaves_nothing(site: Site) -> None:
    requests = [site.ask("/hold/1/")]
    until(lambda: locks.is_locked("view:1"), "the holder")
    requests += [site.ask("/view/1/") for _ in range(5)]
    until(lambda: waiting("view:1") == 5, "the queue")
    site.process.kill()
    site.process.wait()
    # I expect the lock to be had well before the ttl is over
    assert taken("view:1", wait=LONG / 3).release()
    for request in requests:
        request.close()
    until(lambda: not locks.is_locked("view:1"), "the free lock")
