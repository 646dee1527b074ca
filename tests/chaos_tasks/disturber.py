"""What all faults have in common: when they end, their notes, and who may be disturbed."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.history import History, now
from tests.chaos_tasks.crew import Crew, Worker
from tests.chaos_tasks.sender import Sender
from tests.chaos_tasks.servers import Database, Servers

__all__ = ["LOOK_SECONDS", "Disturber"]

LOST_SECONDS = 15.0
"""after which a message that is nowhere does not come back"""
LOOK_SECONDS = 0.02


class Disturber:
    """Begins faults, and ends them in their time. Everything runs in the main thread."""

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

    def _end_what_is_due(self) -> None:
        while self._ends and self._ends[0][0] <= now():
            heapq.heappop(self._ends)[2]()

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
