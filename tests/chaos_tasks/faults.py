"""What the conductor does to the workers, the servers and the connections, at random."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.acceptance.hard_cases.workers import gone
from tests.chaos.history import History, now
from tests.chaos_tasks.bodies import replaced, running
from tests.chaos_tasks.crew import Crew, Worker
from tests.chaos_tasks.sender import Sender
from tests.chaos_tasks.servers import Database, Servers

__all__ = ["Faults"]

TICK_SECONDS = 0.02
LOST_SECONDS = 15.0
"""after which a message that is nowhere does not come back"""
HICCUP_SECONDS = 1.0
"""by which the conductor may be late, before the history says so"""
LOOK_SECONDS = 0.05
REPLACED_SECONDS = 15.0
"""in which a message that nobody acknowledges is redelivered"""
STOPS = (0.2, 1.0, 3.0, 8.0)
"""seconds for which a process is stopped, some of them longer than its lease"""

Fault = Callable[[], object]


class Faults:
    """Begins faults and ends them, each in its time. Everything runs in the main thread."""

    def __init__(
        self,
        crew: Crew,
        servers: Servers,
        database: Database,
        sender: Sender,
        history: History,
        folder: Path,
        chance: Random,
    ) -> None:
        self._crew = crew
        self._servers = servers
        self._database = database
        self._sender = sender
        self._history = history
        self._folder = folder
        self._chance = chance
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._missing: dict[frozenset[str], float] = {}
        self._kinds: list[tuple[Fault, int]] = [
            (self._kill_child, 8), (self._kill_main, 2), (self._stop_child, 3),
            (self._stop_until_replaced, 4),
            (self._stop_main, 1), (self._warm, 2), (self._cold, 3), (self._cut_broker, 2),
            (self._cut_locks, 2), (self._restart_locks, 1), (self._empty_locks, 1),
            (self._pause_locks, 1), (self._restart_broker, 1),
        ]  # fmt: skip
        if database.can_cut:
            self._kinds += [(self._cut_database, 1), (self._cut_update, 3)]

    def run(self, while_: Callable[[], bool], pause: tuple[float, float]) -> None:
        """Disturb while it is so, with such a pause between two; leave nothing disturbed."""
        faults, weights = zip(*self._kinds, strict=True)
        due = now() + self._chance.uniform(*pause)
        while while_():
            self.tick()
            if now() >= due:
                with contextlib.suppress(ProcessLookupError):
                    self._chance.choices(faults, weights)[0]()
                due = now() + self._chance.uniform(*pause)
        while self._ends:
            self.tick()

    def tick(self) -> None:
        """End what is due, and replace workers that have ended."""
        since = now()
        time.sleep(TICK_SECONDS)
        if now() - since > HICCUP_SECONDS:
            self._history.write("hiccup", since=since)
        while self._ends and self._ends[0][0] <= now():
            heapq.heappop(self._ends)[2]()
        for worker in self._crew.mend():
            self._history.write("worker ended", whom=worker.pid, log=worker.text()[-3000:])

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        heapq.heappush(self._ends, (now() + seconds, next(self._order), end))

    def _note(self, fault: str, since: float, whom: int = 0, **says: Any) -> None:
        self._history.write("fault", fault=fault, whom=whom, since=since, **says)

    @contextlib.contextmanager
    def _nothing_on_its_way(self) -> Iterator[bool]:
        """No message moves meanwhile, and whether all of them are where nothing can lose them.

        Celery's Redis transport takes a message from its list first and notes it afterwards: what
        breaks in between loses it, and no task can help that.
        """
        with self._servers.broker.still() as ids:
            missing = set() if ids is None else {
                frozenset(mine) for mine in self._sender.unfinished() if not mine & ids
            }  # fmt: skip
            self._missing = {job: self._missing.get(job, now()) for job in missing}
            # What stays away is lost already, which the checker will say.
            yield all(since < now() - LOST_SECONDS for since in self._missing.values())

    # Of one process.

    def _child(self) -> int | None:
        workers = self._chance.sample(self._crew.workers, len(self._crew.workers))
        for worker in workers:
            if pool := worker.children:
                return self._chance.choice(pool)
        return None

    def _worker(self) -> Worker | None:
        """One that can do without: others are ready."""
        ready = [each for each in self._crew.workers if each.running and each.children]
        return self._chance.choice(ready) if len(ready) > 1 else None

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
            worker.kill()
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
        pool = [pid for worker in self._crew.workers for pid in worker.children]
        bodies = {pid: running(self._folder, pid) for pid in pool}
        pid = next((pid for pid in self._chance.sample(pool, len(pool)) if bodies[pid]), 0)
        body = bodies.get(pid)
        if body is None:
            return
        since = now()
        os.kill(pid, signal.SIGSTOP)

        def look() -> None:
            if not replaced(*body) and now() < since + REPLACED_SECONDS:
                self._after(LOOK_SECONDS, look)
                return
            if not gone(pid):
                os.kill(pid, signal.SIGCONT)
            self._note("child stopped until replaced", since, pid)

        look()

    def _stop_main(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._stop(worker.pid, "worker")

    def _leave(self, signum: int, fault: str) -> None:
        worker = self._worker()
        if worker is not None:
            self._note(fault, now(), worker.pid)
            worker.leave(signum)
            self._crew.replace(worker)

    def _warm(self) -> None:
        self._leave(signal.SIGTERM, "warm shutdown")

    def _cold(self) -> None:
        self._leave(signal.SIGQUIT, "cold shutdown")

    # Of all.

    def _cut_broker(self) -> None:
        since = now()
        with self._nothing_on_its_way() as safe:
            if safe:
                self._servers.broker.cut()
        if safe:
            self._note("broker cut", since)

    def _restart_broker(self) -> None:
        since = now()
        with self._nothing_on_its_way() as safe:
            if safe:
                self._servers.restart_broker()
        if safe:
            self._note("broker restarted", since)

    def _cut_locks(self) -> None:
        since = now()
        self._servers.cut_locks()
        self._note("locks cut", since)

    def _restart_locks(self) -> None:
        since = now()
        self._servers.restart_locks(empty=False)
        self._note("locks restarted", since)

    def _empty_locks(self) -> None:
        since = now()
        self._servers.restart_locks(empty=True)
        self._note("locks emptied", since)

    def _pause_locks(self) -> None:
        since = now()
        self._servers.locks.pause()
        time.sleep(self._chance.choice([0.2, 1, 3]))
        self._servers.locks.resume()
        self._note("locks paused", since)

    def _cut_database(self) -> None:
        since, number = now(), self._database.cut()
        self._note("database cut", since, connections=number)

    def _cut_update(self) -> None:
        since, number = now(), self._database.cut(within=1.0)
        if number:
            self._note("database cut in an UPDATE", since, connections=number)
