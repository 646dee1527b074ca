"""Async views that wait for locks, on a site that one process of uvicorn serves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import locks
from tests.conftest import UseRedis
from tests.servers import free_port
from tests.steps import LONG, taken, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

REQUESTS = 300
NAMES = [f"video-{number}" for number in range(10)]
THREADS = 8  # Those that ask a store and that release, and one each that renews and that listens.
Site = Any  # The process of uvicorn, with its port.


@pytest.fixture
def site(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]], tmp_path: Path
) -> Iterator[Site]:
    """``tests/async_site.py`` on uvicorn."""
    use_redis()
    port, log = free_port(), tmp_path / "uvicorn.log"
    command = [
        sys.executable, "-m", "uvicorn", "--host=127.0.0.1", f"--port={port}",
        "--lifespan=off", "--backlog=2048", "tests.async_site:application",
    ]  # fmt: skip
    environment = process_env() | {"TASKLOCK_TEST_URLCONF": "tests.async_site"}
    with log.open("wb") as out:
        process: Site = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    process.port = port
    try:
        until(lambda: process.poll() is not None or "running on" in log.read_text(), "uvicorn")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def ask(site: Site, path: str) -> socket.socket:
    """Send a request."""
    request = socket.create_connection(("127.0.0.1", site.port), timeout=LONG)
    request.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    return request


def answer_of(request: socket.socket) -> str:
    with request, request.makefile() as stream:
        return stream.read().partition("\n\n")[2]


def test_requests_wait_without_threads(site: Site) -> None:
    # Given many requests that wait for a few locks, on one event loop
    held = [taken(name) for name in NAMES]
    requests = [ask(site, f"/block/{NAMES[number % len(NAMES)]}/") for number in range(REQUESTS)]
    until(lambda: sum(map(waiting, NAMES)) == REQUESTS, "the queues")

    # I expect a request that needs no lock to be answered meanwhile, and no thread for each
    assert 0 < json.loads(answer_of(ask(site, "/state/")))["threads"] <= THREADS

    # I expect clients that go away to leave the queue
    for request in requests[::2]:
        request.close()
    until(lambda: sum(map(waiting, NAMES)) == REQUESTS / 2, "the shorter queues")
    for lease in held:
        assert lease.release()
    assert {answer_of(request) for request in requests[1::2]} == {"alone"}

    # And one that has the lock to leave it
    holding = ask(site, "/hold/1/")
    until(lambda: locks.is_locked("view:1"), "the holder")
    holding.close()
    until(lambda: locks.count() == 0, "the end of all locks")
