"""A real worker with one pool child, and what the kernel says it has used."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from example_project.processes import Process, ending

from .bench import Bench

__all__ = ["Worker", "until", "worker"]

TICK = os.sysconf("SC_CLK_TCK")


class Worker:
    """The main process of a worker, and its children."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def children(self) -> list[int]:
        """The pids of the pool's children."""
        pid = self._main()
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def cpu(self) -> float:
        """Seconds of processor time of all of its processes so far."""
        return sum(_cpu(pid) for pid in [self._main(), *self.children()])

    def main_cpu(self) -> float:
        """That of the main process, as exact as the kernel keeps it."""
        return _exact_cpu(self._main())

    def children_cpu(self) -> float:
        """That of the pool's children."""
        return sum(map(_exact_cpu, self.children()))

    def _main(self) -> int:
        # What starts a worker may put a process in front of it.
        pid = self._process.pid
        while b"celery" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = _children(pid)[0]
        return pid


@contextmanager
def worker(bench: Bench) -> Iterator[Worker]:
    """Start one, and wait until it works."""
    process = Process("worker", _command("WARNING", 1), Path(bench.folder) / "worker.log")
    with ending([process]):
        done(bench, 60)
        yield Worker(process)


@contextmanager
def new_worker(
    bench: Bench, loglevel: str, concurrency: int, environment: Mapping[str, str]
) -> Iterator[Worker]:
    """Start one in this ``environment``, and wait until it is ready. It has run no task yet."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    ready = folder / "ready"
    before = dict(os.environ)
    os.environ.update(environment, BENCHMARK_READY=str(ready))
    try:
        process = Process("worker", _command(loglevel, concurrency), folder / "worker.log")
    finally:
        os.environ.clear()
        os.environ.update(before)
    with ending([process]):
        started = Worker(process)
        log = process.log
        until(lambda: ready.exists() and len(started.children()) >= concurrency, 60, log.read_text)
        yield started


def done(bench: Bench, seconds: float) -> None:
    """Return when the worker has done what is in the queue now."""
    from .site.celery import say_done

    path = Path(bench.folder) / f"done-{time.monotonic_ns()}"
    say_done.delay(str(path))
    until(path.exists, seconds, lambda: (Path(bench.folder) / "worker.log").read_text()[-4000:])


def until(what: Callable[[], object], seconds: float, why: Callable[[], str] = str) -> None:
    """Return when ``what`` is true. Raises `TimeoutError`, with ``why()``."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s. {why()}")
        time.sleep(0.001)


def _command(loglevel: str, concurrency: int) -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-A", "benchmarks.site.celery", "worker"),
        *("--pool", "prefork", "--concurrency", str(concurrency), "--loglevel", loglevel),
        *("--without-mingle", "--without-gossip", "--without-heartbeat"),
    ]


def _exact_cpu(pid: int) -> float:
    """The seconds of all threads that live, which are not rounded to a hundredth."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK
