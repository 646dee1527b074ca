"""A real worker with one pool child, and what the kernel says it has used."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from example_project.processes import Process, ending

from .bench import Bench, until

__all__ = ["Worker", "done", "worker"]


class Worker:
    """The main process of a worker, and its pool child."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def cpu(self) -> tuple[float, float]:
        """Seconds of processor time of all of its threads so far: of the whole worker, and of its
        pool child alone."""
        pid = self._process.pid
        # What starts a worker may put a process in front of it.
        while b"celery" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = _children(pid)[0]
        child = sum(map(_cpu, _children(pid)))
        return _cpu(pid) + child, child


@contextmanager
def worker(bench: Bench) -> Iterator[Worker]:
    """Start one, and wait until it works."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "benchmarks.site.celery", "worker"),
        *("--pool", "prefork", "--concurrency", "1", "--loglevel", "WARNING"),
        *("--without-mingle", "--without-gossip", "--without-heartbeat"),
    ]
    process = Process("worker", command, bench.folder / "worker.log")
    with ending([process]):
        done(bench, 60)
        yield Worker(process)


def done(bench: Bench, seconds: float) -> None:
    """Return when the worker has done what is in the queue now."""
    from .site.celery import say_done

    path = bench.folder / f"done-{time.monotonic_ns()}"
    say_done.delay(str(path))
    until(path.exists, seconds, lambda: (bench.folder / "worker.log").read_text()[-4000:])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9
