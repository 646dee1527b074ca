"""The workers of a run: real ``celery worker`` processes, started and replaced by the conductor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from example_project.die_with_parent import die_with_parent
from tests.acceptance.hard_cases.workers import ROOT, START_SECONDS, children
from tests.chaos.history import now
from tests.waiting import until

__all__ = ["Crew", "Worker"]

STARTING_SECONDS = 1.5
"""after it says that it is ready, until Celery takes the pool for started"""
LEAVING_SECONDS = 60.0
"""seconds in which a worker that was asked to end has to"""


class Worker:
    """One worker: a process group of its own, its output in a file."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str], pool: int) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.leaving_since: float | None = None
        self._ready_since: float | None = None
        command = [
            *(sys.executable, "-m", "celery", "-A", "tests.chaos_tasks.app", "worker"),
            *("-P", "prefork", "-c", str(pool), "-n", f"{name}@chaos", "-l", "INFO"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                # However we end, it does not outlive us.
                die_with_parent(command, by=signal.SIGKILL),
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def children(self) -> list[int]:
        """Its pool, once it works: Celery gives up when a child dies while the pool starts."""
        if not self.running or (self._ready_since is None and " ready." not in self.text()):
            return []
        self._ready_since = self._ready_since or now()
        return children(self.pid) if now() > self._ready_since + STARTING_SECONDS else []

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Return once the worker says that it is ready. AssertionError if it has ended."""
        until(lambda: not self.running or " ready." in self.text(), self.name, START_SECONDS)
        assert self.running, f"{self.name} ended early:\n{self.text()[-4000:]}"

    def send(self, signum: int) -> None:
        """Signal the main process alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def leave(self, signum: int) -> None:
        """Ask it to end, warm or cold."""
        self.leaving_since = now()
        self.send(signum)

    def kill(self) -> None:
        """SIGKILL the main process alone; its pool notices."""
        self._process.kill()
        self._process.wait()

    def threads(self) -> str:
        """What its threads are at, as the end of its log."""
        self.send(signal.SIGUSR2)
        time.sleep(1)
        return self.text()[-6000:]

    def end(self) -> None:
        """SIGKILL whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Crew:
    """The workers that are to work, and those that are on their way out."""

    def __init__(self, folder: Path, environment: dict[str, str], size: int, pool: int) -> None:
        self._folder = folder
        self._environment = environment
        self._pool = pool
        self._started = 0
        self.gone: list[Worker] = []
        self.workers: list[Worker] = []
        for _ in range(size):
            self.workers.append(self._start())

    def wait_ready(self) -> None:
        for worker in self.workers:
            worker.wait_ready()

    def replace(self, worker: Worker) -> None:
        """Start another one in its place. From the main thread, with which workers die."""
        self.gone.append(worker)
        self.workers[self.workers.index(worker)] = self._start()

    def mend(self) -> list[Worker]:
        """Replace those that have ended though nobody asked them to; returns them."""
        ended = [worker for worker in self.workers if not worker.running]
        for worker in ended:
            self.replace(worker)
        return ended

    def stuck(self) -> list[Worker]:
        """Wait for those that were asked to end; returns the ones that did not."""
        leaving = [worker for worker in self.gone if worker.leaving_since is not None]
        last = max([worker.leaving_since or 0.0 for worker in leaving], default=0.0)
        while any(each.running for each in leaving) and now() < last + LEAVING_SECONDS:
            time.sleep(0.1)
        return [worker for worker in leaving if worker.running]

    def leave(self) -> None:
        """Ask all to end, and wait for it."""
        for worker in self.workers:
            worker.leave(signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            until(lambda: not any(each.running for each in self.workers), "the end", 30)

    def end(self) -> None:
        for worker in [*self.workers, *self.gone]:
            worker.end()

    def _start(self) -> Worker:
        self._started += 1
        return Worker(f"w{self._started}", self._folder, self._environment, self._pool)
