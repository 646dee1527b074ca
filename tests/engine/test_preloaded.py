"""Sites that are loaded before their server forks: uWSGI, and gunicorn with ``--preload``.

uWSGI forks in C, and by default calls none of Python's fork handlers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import psutil
import pytest
from django.core.cache import cache

from django_tasklock import locks
from tests import needs
from tests.conftest import UseRedis
from tests.nights import by_day
from tests.servers import free_port
from tests.steps import Meanwhile, holder, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
SITE = "tests.preloaded_site"
WORKERS = 3
THREADS = 4


class Site(NamedTuple):
    process: subprocess.Popen[bytes]
    ask: Callable[[str], dict[str, Any]]
    # Requests that are served at the same time.
    requests: int


def get(port: int, path: str) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def gunicorn(port: int, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "gunicorn", "--preload", f"--bind=127.0.0.1:{port}"),
        *(f"--workers={WORKERS}", "--no-control-socket", *options),
    ]


def uwsgi(port: int, *options: str) -> list[str]:
    program = Path(sys.executable).with_name("uwsgi")
    if not program.exists():
        needs.missing("uWSGI is not installed beside this Python (pip install pyuwsgi)")
    return [
        *(str(program), f"--http-socket=127.0.0.1:{port}", "--master", f"--processes={WORKERS}"),
        *("--need-app", "--die-on-term", f"--module={SITE}:application", f"--home={sys.prefix}"),
        *options,
    ]


HOOKS, CHEAPER = ["--py-call-osafterfork"], ["--cheaper=1", "--cheaper-initial=3"]
GTHREAD = ["--worker-class=gthread", f"--threads={WORKERS * THREADS}", f"{SITE}:application"]
# By what a process is started, the view that is asked, and how many requests a worker serves.
KINDS: dict[str, tuple[Callable[..., list[str]], list[str], str, int]] = {
    "uwsgi": (uwsgi, [], "work", 1),
    "uwsgi-threads": (uwsgi, ["--enable-threads", f"--threads={THREADS}"], "work", THREADS),
    "uwsgi-hooks": (uwsgi, ["--enable-threads", *HOOKS], "work", 1),
    "uwsgi-cheaper": (uwsgi, ["--enable-threads", *CHEAPER], "work", 1),
    "gunicorn-wsgi": (gunicorn, GTHREAD, "work", THREADS),
    "gunicorn-asgi": (gunicorn, ["--worker-class=asgi", f"{SITE}:asgi"], "awork", THREADS),
}


@pytest.fixture(params=by_day(*KINDS))
def site(
    request: pytest.FixtureRequest,
    use_redis: UseRedis,
    process_env: Callable[[], dict[str, str]],
    tmp_path: Path,
) -> Iterator[Site]:
    """The master's process, and a request for work under a lock."""
    use_redis()
    server, options, view, threads = KINDS[request.param]
    port, log = free_port(), tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            server(port, *options),
            env=process_env() | {"GUNICORN_CMD_ARGS": "", "TASKLOCK_TEST_URLCONF": SITE},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def booted() -> bool:
        said = log.read_text()
        assert process.poll() is None, said
        return said.count("Booting worker") + said.count("spawned uWSGI worker") == WORKERS

    try:
        until(booted, "the server", 60)
        yield Site(process, lambda name: get(port, f"/{view}/{name}/"), WORKERS * threads)
    finally:
        # uWSGI would be asked in vain after the death of a worker.
        workers = psutil.Process(process.pid).children()
        process.kill()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        process.wait()


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


def test_workers_share_nothing_with_their_master_but_the_locks(site: Site) -> None:
    # Given a site whose master has used locks, and holds one, before it forked its workers
    process, ask, requests = site
    master = f"master-{process.pid}"
    assert holder(master).owner.pid == process.pid
    # Many requests for one lock, in several workers: one holds it, all others wait.
    with ThreadPoolExecutor(requests) as threads:
        answers = [threads.submit(ask, "one") for _ in range(requests)]
        until(lambda: waiting("one") == requests - 1, "the queue", 60)
        # A lease is renewed by its own worker.
        renewed("one")
        first = holder("one")
        cache.set("go", True, None)
        told = [answer.result() for answer in answers]
    assert first.owner.pid in {each["pid"] for each in told} - {process.pid}
    assert not any(each["holds_masters"] for each in told)
    assert all(each["awaited"] for each in told)
    assert len({each["fence"] for each in told}) == requests
    # I expect no connection to be that of another process
    owners: dict[int, set[int]] = {each["masters_connection"]: {process.pid} for each in told}
    for each in told:
        owners.setdefault(each["connection"], set()).add(each["pid"])
    assert all(len(pids) == 1 for pids in owners.values())

    # And a worker that is killed at work to lose its lock to the next request
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
