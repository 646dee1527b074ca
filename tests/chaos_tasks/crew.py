"""The workers of a run: real ``celery worker`` processes, started and replaced by the conductor."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from tests.acceptance.hard_cases import workers
from tests.chaos.history import History, now
from tests.waiting import until

__all__ = ["Crew", "Worker"]

STARTING_SECONDS = 1.5
"""after it says that it is ready, until Celery takes the pool for started"""
LEAVING_SECONDS = 60.0
"""seconds in which a worker that was asked to end has to"""


class Worker(workers.Worker):
    """A worker that may be asked to leave, and is replaced then."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str], pool: int) -> None:
        super().__init__(
            name, folder / f"{name}.log", environment, concurrency=pool,
            options=("--without-heartbeat",), app="tests.chaos_tasks.app", host="chaos",
            by_parent=True,
        )  # fmt: skip
        self.leaving_since: float | None = None
        self._ready_since: float | None = None

    @property
    def children(self) -> list[int]:
        """Its pool, once it works: Celery gives up when a child dies while the pool starts."""
        if not self.running or (self._ready_since is None and " ready." not in self.text()):
            return []
        self._ready_since = self._ready_since or now()
        return super().children if now() > self._ready_since + STARTING_SECONDS else []

    def send(self, signum: int) -> None:
        """Send a signal to the main process alone, if it is there."""
        with contextlib.suppress(ProcessLookupError):
            super().send(signum)

    def leave(self, signum: int) -> None:
        """Ask it to end, warm or cold."""
        self.leaving_since = now()
        self.send(signum)

    def kill(self) -> None:
        """SIGKILL the main process alone; its pool notices."""
        self.process.kill()
        self.process.wait()

    def threads(self) -> str:
        """What its threads are at, as the end of its log."""
        self.send(signal.SIGUSR2)
        time.sleep(1)
        return self.text()[-6000:]


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

    def leaving(self) -> list[Worker]:
        """Those that were asked to end and have not."""
        asked = [worker for worker in self.gone if worker.leaving_since is not None]
        return [worker for worker in asked if worker.running]

    def stuck(self) -> list[Worker]:
        """Those of them that should have ended by now."""
        latest = now() - LEAVING_SECONDS
        return [worker for worker in self.leaving() if (worker.leaving_since or 0.0) < latest]

    def end_stuck(self, history: History) -> None:
        """Kill those that are stuck, as whoever runs workers does: as long as they live, a broker
        may keep their messages for them."""
        for worker in self.stuck():
            history.write("worker stuck", whom=worker.pid, log=worker.threads())
            since = now()
            worker.kill()
            history.write("fault", fault="worker killed", whom=worker.pid, since=since)

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
