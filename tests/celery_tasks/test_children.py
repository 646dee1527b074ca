"""How the main process of a worker learns that a pool child is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from celery.signals import worker_ready
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from django_tasklock.celery import children as module
from django_tasklock.celery.children import Children
from tests.waiting import PATIENCE, until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.fixture
def deaths() -> list[str]:
    return []


@pytest.fixture
def children() -> Children:
    """Those of a worker that has just begun."""
    return Children()


@pytest.fixture
def loop() -> Iterator[Hub]:
    """The event loop of a worker."""
    loop = Hub()
    set_event_loop(loop)
    yield loop
    loop.close()


def pidfds() -> int:
    """How many this process has open."""
    folder = Path("/proc/self/fd")
    return sum("pidfd" in os.readlink(link) for link in folder.iterdir() if link.is_symlink())


class Ready:
    """A worker's consumer, as far as its children know it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(PATIENCE)


@pytest.fixture(autouse=True)
def no_loop() -> Iterator[None]:
    before = get_event_loop()
    set_event_loop(None)
    yield
    set_event_loop(before)


def told(loop: Hub, deaths: list[str]) -> list[str]:
    """What is known of deaths when the loop has gone on until it knew of one."""

    def turned() -> list[str]:
        loop.run_once()
        return deaths

    until(turned)
    return deaths


def test_a_thread_waits_where_there_is_no_event_loop(
    children: Children, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    before = set(threading.enumerate())
    children.watch(child.pid, lambda: deaths.append("died"))
    children.watch(child.pid, lambda: deaths.append("died, too"))
    # Those of other tests may end meanwhile.
    assert len(set(threading.enumerate()) - before) == 1
    assert not children.in_loop()
    child.kill()
    until(lambda: len(deaths) == 2)
    assert sorted(deaths) == ["died", "died, too"]
    # And with the last child the thread ends
    until(lambda: set(threading.enumerate()) <= before)


def test_the_event_loop_reports_a_death_if_there_is_one(
    children: Children, loop: Hub, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    before = set(threading.enumerate())
    children.watch(child.pid, lambda: deaths.append("died"))
    assert set(threading.enumerate()) <= before
    assert children.in_loop()
    end(child)
    assert told(loop, deaths) == ["died"]
    loop.run_once()
    assert deaths == ["died"]


def test_a_loop_that_was_reset_still_reports_a_death(
    children: Children, loop: Hub, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    """A worker that lost the broker forgets all the files of its loop, and the loop itself."""
    children.watch(child.pid, lambda: deaths.append("died"))
    for _ in range(2):
        loop.reset()
        assert not loop.readers
        assert get_event_loop() is None
        with closing(loop.create_loop()) as begun:
            next(begun)
    loop.reset()
    end(child)
    assert told(loop, deaths) == ["died"]


def test_a_worker_that_is_ready_shows_its_loop(
    children: Children,
    child: subprocess.Popen[bytes],
    deaths: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Celery's own note of it is gone when the broker was lost before the first run."""
    monkeypatch.setattr(module, "children", children)
    loop = Hub()
    worker_ready.send(sender=Ready(loop))
    before = set(threading.enumerate())
    children.watch(child.pid, lambda: deaths.append("died"))
    assert set(threading.enumerate()) <= before
    end(child)
    assert told(loop, deaths) == ["died"]
    loop.close()


def test_a_run_that_has_ended_is_watched_no_more(
    children: Children, loop: Hub, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    ended = children.watch(child.pid, lambda: deaths.append("the ended one's"))
    children.watch(child.pid, lambda: deaths.append("died"))
    ended.stop()
    ended.stop()
    end(child)
    assert told(loop, deaths) == ["died"]


def test_a_child_is_one_open_file_however_many_its_runs(
    children: Children, loop: Hub, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    before = pidfds()
    for _ in range(100):
        children.watch(child.pid, lambda: deaths.append("died")).stop()
    assert pidfds() == before + 1
    end(child)
    loop.run_once()
    assert pidfds() == before
    assert deaths == []


def test_a_child_that_was_forked_since_hides_no_death(
    children: Children, loop: Hub, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    """It has the files of its parent open, which end for the kernel with the last who has them."""
    children.watch(child.pid, lambda: deaths.append("died")).stop()
    forked = os.fork()
    if not forked:
        signal.pause()
    try:
        end(child)
        loop.run_once()
        assert not children._by_pid
        assert not children._deaths.poll(0)
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_stopping_in_many_threads_while_the_child_dies_reports_once_at_most(
    children: Children, child: subprocess.Popen[bytes], deaths: list[str]
) -> None:
    watches = [children.watch(child.pid, lambda: deaths.append("died")) for _ in range(50)]
    stops = [threading.Thread(target=watch.stop) for watch in watches]
    for number, thread in enumerate(stops):
        if number == 25:
            child.kill()
        thread.start()
    for thread in stops:
        thread.join()
    child.wait(PATIENCE)
    until(lambda: not children._by_pid)
    assert len(deaths) <= 25


def test_a_child_that_is_dead_already_is_reported_at_once(
    children: Children, deaths: list[str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(PATIENCE)
    children.watch(process.pid, lambda: deaths.append("died"))
    assert deaths == ["died"]


def test_a_pid_that_another_process_has_now(
    children: Children,
    loop: Hub,
    child: subprocess.Popen[bytes],
    deaths: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run of the dead one is told before the new one is watched."""
    opened: list[int] = [child.pid]
    real = os.pidfd_open
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as another:
        opened.append(another.pid)
        monkeypatch.setattr(os, "pidfd_open", lambda pid: real(opened.pop(0)))
        children.watch(4242, lambda: deaths.append("the first"))
        end(child)
        children.watch(4242, lambda: deaths.append("the second"))
        assert deaths == ["the first"]
        end(another)
        loop.run_once()
    assert deaths == ["the first", "the second"]


def test_without_pidfds_no_death_is_reported(
    children: Children,
    child: subprocess.Popen[bytes],
    deaths: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    watch = children.watch(child.pid, lambda: deaths.append("died"))
    end(child)
    watch.stop()
    assert deaths == []


def test_a_signal_handler_watches_while_the_main_thread_does(
    children: Children,
    child: subprocess.Popen[bytes],
    deaths: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler of a cold shutdown ends the pool, which accepts what is on its way."""
    usual, before = module.Child, signal.getsignal(signal.SIGUSR1)

    def interrupted(pid: int) -> module.Child:
        monkeypatch.setattr(module, "Child", usual)
        signal.raise_signal(signal.SIGUSR1)
        return usual(pid)

    def watch(*_: object) -> None:
        children.watch(child.pid, lambda: deaths.append("handler"))

    open_before = pidfds()
    monkeypatch.setattr(module, "Child", interrupted)
    signal.signal(signal.SIGUSR1, watch)
    try:
        children.watch(child.pid, lambda: deaths.append("main"))
        assert pidfds() == open_before + 1
        end(child)
        until(lambda: len(deaths) == 2, "both deaths")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(deaths) == ["handler", "main"]
    until(lambda: pidfds() == open_before, "that the pidfd is closed")
