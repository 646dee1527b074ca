"""How the main process of a worker learns that a pool child is dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from django_tasklock.celery.request import Watch
from tests.steps import PATIENCE, until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.fixture
def deaths() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def no_loop() -> Iterator[None]:
    before = get_event_loop()
    set_event_loop(None)
    yield
    set_event_loop(before)


def test_a_thread_waits_where_there_is_no_event_loop(
    child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    Watch(child.pid, lambda: deaths.append("died"))
    child.kill()
    until(lambda: deaths)
    assert deaths == ["died"]


def test_the_event_loop_tells_where_there_is_one(
    child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    loop = Hub()
    set_event_loop(loop)
    before = threading.active_count()
    Watch(child.pid, lambda: deaths.append("died"))
    assert threading.active_count() == before
    child.kill()
    child.wait(PATIENCE)

    def turned() -> list[str]:
        loop.run_once()
        return deaths

    until(turned)
    assert deaths == ["died"]
    loop.close()


def test_a_run_that_has_ended_is_watched_no_more(
    child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    """And to say so twice closes no file that somebody else has opened since."""
    before = len(os.listdir("/proc/self/fd"))
    watch = Watch(child.pid, lambda: deaths.append("died"))
    stops = [threading.Thread(target=watch.stop) for _ in range(8)]
    for thread in stops:
        thread.start()
    for thread in stops:
        thread.join()
    until(lambda: len(os.listdir("/proc/self/fd")) == before)
    child.kill()
    child.wait(PATIENCE)
    assert deaths == []


def test_who_is_dead_already_is_told_at_once(deaths: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(PATIENCE)
    Watch(process.pid, lambda: deaths.append("died"))
    assert deaths == ["died"]


def test_without_a_pidfd_the_lease_alone_is_left(
    child: subprocess.Popen[bytes], deaths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    watch = Watch(child.pid, lambda: deaths.append("died"))
    child.kill()
    child.wait(PATIENCE)
    watch.stop()
    assert deaths == []
