"""What may happen to one process: it is killed, stopped, or asked to end."""

from __future__ import annotations

import os
import signal
import time

from tests.acceptance.hard_cases.workers import gone, stopped
from tests.chaos.history import now
from tests.chaos_tasks.bodies import claiming, replaced, running
from tests.chaos_tasks.crew import Worker
from tests.chaos_tasks.disturber import LOOK_SECONDS, Disturber

__all__ = ["ProcessFaults"]

REPLACED_SECONDS = 15.0
"""in which a message that nobody acknowledges is redelivered"""
MEETING_SECONDS = 1.0
"""for which a fault waits for a run that it can meet"""
MEETING_LOOK_SECONDS = 0.01
STOPS = (0.2, 1.0, 3.0, 8.0)
"""seconds for which a process is stopped, some of them longer than its lease"""


class ProcessFaults(Disturber):
    """Faults of the workers' main processes and of their pools."""

    def _kill_child(self) -> None:
        pid = self._child()
        if pid is not None:
            since = now()
            os.kill(pid, signal.SIGKILL)
            self._note("child killed", since, pid)

    def _kill_main(self) -> None:
        worker, since = self._worker(), now()
        if worker is None:
            return
        with self._nothing_on_its_way() as safe:
            if not safe:
                return
            self._servers.broker.end(worker.pid, worker.kill)
        self._note("worker killed", since, worker.pid)
        self._crew.replace(worker)

    def _stop(self, pid: int, what: str) -> None:
        since = now()
        os.kill(pid, signal.SIGSTOP)

        def resume() -> None:
            if not gone(pid):
                os.kill(pid, signal.SIGCONT)
            self._note(f"{what} stopped", since, pid)

        self._after(self._chance.choice(STOPS) * self._chance.uniform(0.5, 1), resume)

    def _stop_child(self) -> None:
        pid = self._child()
        if pid is not None:
            self._stop(pid, "child")

    def _stop_until_replaced(self) -> None:
        """Stop a body until another run has its row, so that both would finish it."""
        pool = self._pool()
        bodies = {pid: running(self._folder, pid) for pid in pool}
        for pid in self._chance.sample(pool, len(pool)):
            # A second run of these would be one too many.
            if (body := bodies[pid]) and body[2] not in ("once", "poison"):
                self._stop_while(pid, body[0], body[1], "child stopped until replaced")
                return

    def _stop_before_claim(self) -> None:
        """Stop a run that has its lock, and not its row, until another run has that."""
        deadline = now() + MEETING_SECONDS
        while now() < deadline:
            for pid in self._pool():
                if stopped(pid) or claiming(self._folder, pid) is None:
                    continue
                os.kill(pid, signal.SIGSTOP)
                run = claiming(self._folder, pid)
                if run is None:
                    os.kill(pid, signal.SIGCONT)  # It was quicker.
                    continue
                self._stop_while(pid, *run, "child stopped before its claim")
                return
            time.sleep(MEETING_LOOK_SECONDS)

    def _stop_while(self, pid: int, job: int, fence: int, what: str) -> None:
        """Stop a process until another run than that with the fence has the row."""
        since = now()
        os.kill(pid, signal.SIGSTOP)

        def look() -> None:
            if not replaced(job, fence) and now() < since + REPLACED_SECONDS:
                self._after(LOOK_SECONDS, look)
                return
            if not gone(pid):
                os.kill(pid, signal.SIGCONT)
            self._note(what, since, pid)

        look()

    def _pool(self) -> list[int]:
        return [pid for worker in self._crew.workers for pid in worker.children]

    def _stop_main(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._stop(worker.pid, "worker")

    def _leave(self, worker: Worker | None, signum: int, fault: str) -> None:
        if worker is not None:
            self._note(fault, now(), worker.pid)
            worker.leave(signum)
            self._crew.replace(worker)

    def _warm(self) -> None:
        self._leave(self._worker(), signal.SIGTERM, "warm shutdown")

    def _cold(self) -> None:
        self._leave(self._worker(), signal.SIGQUIT, "cold shutdown")

    def _cold_in_the_only_try(self) -> None:
        """A cold shutdown in a body that may not die once: it is no death."""
        deadline = now() + MEETING_SECONDS
        while now() < deadline:
            worker = self._worker()
            for pid in worker.children if worker is not None else ():
                body = running(self._folder, pid)
                if body is not None and body[2] == "once":
                    self._leave(worker, signal.SIGQUIT, "cold shutdown")
                    return
            time.sleep(MEETING_LOOK_SECONDS)
