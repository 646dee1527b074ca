"""How the main process of a worker learns that a pool child is dead."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous import Hub

from tests.inside import children_of
from tests.waiting import PATIENCE, until

Child = subprocess.Popen[bytes]


class Worker:
    """What its children are to a worker's main process: its pool and its event loop."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.pool = Mock(spec=TaskPool, _pool=Mock())
        self.deaths: list[str] = []
        self.children = children_of(self)

    def accepts(self, child: Child, message: str) -> None:
        self.children.accepted(child.pid, lambda: self.deaths.append(message))

    def is_told(self) -> Any:
        """Let the loop go on. Whether it has told of a death."""
        self.hub.run_once()
        return self.deaths


@pytest.fixture
def worker() -> Iterator[Worker]:
    with closing((worker := Worker()).hub):
        yield worker


@pytest.fixture
def child() -> Iterator[Child]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def end(child: Child) -> None:
    child.kill()
    child.wait(PATIENCE)


def pidfds() -> int:
    """How many this process has open."""
    files = Path("/proc/self/fd").iterdir()
    return sum("pidfd" in os.readlink(file) for file in files if file.is_symlink())


def test_of_a_child_that_dies_the_last_message_is_told_and_the_pool_looks_at_once(
    worker: Worker, child: Child
) -> None:
    # Given a child with its second message, and one that was forked since: it has the files of
    # its parent open
    before = pidfds()
    worker.accepts(child, "the first")
    worker.accepts(child, "the last")
    if not (forked := os.fork()):
        signal.pause()
    try:
        # When it dies, I expect the end of its last message to be told
        end(child)
        assert until(worker.is_told) == ["the last"]

        # And the pool to replace it, and nothing of it to be left
        assert worker.pool._pool.maintain_pool.call_count == 1
        assert pidfds() == before
        assert not worker.hub.poller.poll(0)
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_a_loop_that_was_reset_still_reports_a_death(worker: Worker, child: Child) -> None:
    """A worker that lost the broker has forgotten all the files of its loop, and begins it anew."""
    worker.accepts(child, "died")
    worker.hub.reset()
    assert not worker.hub.readers
    for _ in range(2):  # For each task.
        worker.children.use(worker)
    end(child)
    assert until(worker.is_told) == ["died"]


def test_without_a_loop_child_processes_or_pidfds_nothing_is_watched(
    worker: Worker, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    for consumer in (Mock(hub=None, pool=worker.pool), Mock(hub=worker.hub)):
        worker.children.use(consumer)
        worker.accepts(child, "died")
    worker.children.use(worker)
    end(child)
    worker.accepts(child, "after its death, which the pool knows")
    monkeypatch.delattr(os, "pidfd_open")
    worker.accepts(child, "on another system")
    assert not worker.hub.readers
