"""gunicorn with ``--preload``: locks before the fork and after it, by WSGI and by ASGI."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import locks
from tests.conftest import UseRedis
from tests.processes import end_politely
from tests.servers import free_port
from tests.steps import Meanwhile, holder, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
SITE = "tests.nightly.surroundings.preloaded_site"
WORKERS = 3
REQUESTS = 12
KINDS = {
    "wsgi": (f"{SITE}:application", ("--worker-class=gthread", f"--threads={REQUESTS}"), "work"),
    "asgi": (f"{SITE}:asgi", ("--worker-class=asgi",), "awork"),
}


def get(port: int, path: str) -> dict[str, Any]:
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer


@pytest.fixture(params=list(KINDS))
def site(
    request: pytest.FixtureRequest,
    use_redis: UseRedis,
    process_env: Callable[[], dict[str, str]],
    tmp_path: Path,
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], dict[str, Any]]]]:
    """The master's process, and a request for work under a lock."""
    use_redis()
    application, options, view = KINDS[request.param]
    port = free_port()
    log = tmp_path / "gunicorn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "--preload", f"--bind=127.0.0.1:{port}"),
                *(f"--workers={WORKERS}", *options, f"--env=TASKLOCK_TEST_URLCONF={SITE}"),
                *("--no-control-socket", application),
            ],
            env=process_env() | {"GUNICORN_CMD_ARGS": "", "TASKLOCK_TEST_URLCONF": SITE},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def booted() -> bool:
        assert process.poll() is None, log.read_text()
        return log.read_text().count("Booting worker") == WORKERS

    try:
        until(booted, "gunicorn", 60)
        yield process, lambda name: get(port, f"/{view}/{name}/")
    finally:
        end_politely(process)


def renewed(name: str) -> None:
    """Wait until a lease has been extended."""
    before = holder(name)

    def grown() -> bool:
        now = holder(name)
        assert now.token == before.token
        least[0] = min(least[0], now.ttl or 0.0)
        return (now.ttl or 0.0) > least[0] + 0.5

    least = [before.ttl or 0.0]
    until(grown, f"{name} is renewed", every=0.05)


def test_workers_share_nothing_with_their_master_but_the_locks(
    site: tuple[subprocess.Popen[bytes], Callable[[str], dict[str, Any]]],
) -> None:
    process, ask = site
    assert holder("master").owner.pid == process.pid
    # Many requests for one lock, in several workers: one holds it, all others wait.
    with ThreadPoolExecutor(REQUESTS) as threads:
        answers = [threads.submit(ask, "one") for _ in range(REQUESTS)]
        until(lambda: waiting("one") == REQUESTS - 1, "the queue", 60)
        # The master renews its lease, and the worker renews its own.
        renewed("one")
        renewed("master")
        first = holder("one")
        cache.set("go", True, None)
        told = [answer.result() for answer in answers]
    assert first.owner.pid in {each["pid"] for each in told} - {process.pid}
    assert holder("master").owner.pid == process.pid
    assert not any(each["holds_masters"] for each in told)
    assert len({each["fence"] for each in told}) == REQUESTS
    assert min(each["fence"] for each in told) > (holder("master").fence or 0)
    # No connection is that of another process.
    owners: dict[int, set[int]] = {each["masters_connection"]: {process.pid} for each in told}
    for each in told:
        owners.setdefault(each["connection"], set()).add(each["pid"])
    assert all(len(pids) == 1 for pids in owners.values())

    # A worker that is killed at work loses its lock to the next request, and the master keeps its.
    cache.delete("go")
    lost: Meanwhile[Any] = Meanwhile(lambda: ask("two"))
    until(lambda: locks.is_locked("two"), "a holder")
    killed = holder("two")
    assert killed.owner.pid not in (None, process.pid)
    os.kill(killed.owner.pid or 0, signal.SIGKILL)
    with pytest.raises((OSError, HTTPException)):
        lost.result()
    cache.set("go", True, None)
    again = ask("two")
    assert again["pid"] != killed.owner.pid
    assert again["fence"] > (killed.fence or 0)
    renewed("master")
    until(lambda: locks.count() == 1, "the master's lock alone")
