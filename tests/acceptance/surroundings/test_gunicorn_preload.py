"""gunicorn with ``--preload``: locks before the fork, in the main process, and in each worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from django_tasklock import locks
from tests.conftest import UseRedis
from tests.servers import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

REQUESTS = 40
WORKERS = 3
TTL_SECONDS = 6.0
"""preloaded_site.py has it too"""


@pytest.fixture
def gunicorn(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]], tmp_path: Path
) -> Iterator[tuple[int, int]]:
    """The port and the main process of the site."""
    use_redis()
    port = free_port()
    site = "tests.acceptance.surroundings.preloaded_site"
    environment = process_env() | {"GUNICORN_CMD_ARGS": "", "TASKLOCK_TEST_URLCONF": site}
    with (tmp_path / "gunicorn.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", f"--bind=127.0.0.1:{port}", "--preload"),
                *(f"--workers={WORKERS}", "--threads=8", "--no-control-socket"),
                f"{site}:application",
            ],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            until(lambda: process.poll() is not None or serves(port), "gunicorn")
            assert process.poll() is None, (tmp_path / "gunicorn.log").read_text()
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def test_locks_before_and_after_the_fork(gunicorn: tuple[int, int], tmp_path: Path) -> None:
    port, main = gunicorn
    with ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(lambda _: get(port, "/page/"), range(REQUESTS)))
    pids, fences = zip(*(answer.split() for answer in answers), strict=True)
    assert len(set(pids)) > 1, "one process has answered everything"
    assert len(set(fences)) == REQUESTS

    # A worker that is killed at work loses its lock at once, and no other one's.
    file = tmp_path / "pid"
    with ThreadPoolExecutor(2) as pool:
        pool.submit(get, port, f"/page/?seconds=300&file={file}")
        victim = int(until(lambda: file.exists() and file.read_text(), "that it is at work"))
        assert victim in [child.pid for child in psutil.Process(main).children()]
        waiting = pool.submit(get, port, "/page/")
        os.kill(victim, signal.SIGKILL)
        # It may have been the victim's own request.
        assert waiting.exception(60) is None or get(port, "/page/")
    until(lambda: len(psutil.Process(main).children()) == WORKERS, "a new worker")

    # The main process's lease is its own, and is renewed all the time.
    last = ttl_of_main(main)
    assert last <= TTL_SECONDS
    until(lambda: ttl_of_main(main) > last, "that it is renewed")
    assert get(port, "/page/")


def ttl_of_main(pid: int) -> float:
    """Seconds that the main process's lease has left."""
    info = locks.get("main")
    assert info is not None
    assert info.ttl is not None
    assert info.owner.pid == pid
    return info.ttl


def get(port: int, path: str) -> str:
    """The page's text."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read().decode()
    finally:
        connection.close()


def serves(port: int) -> bool:
    try:
        return bool(get(port, "/page/"))
    except OSError:
        return False
