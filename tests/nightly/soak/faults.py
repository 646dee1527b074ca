"""What is done to the processes of a soak and to their server, at random; and deploys."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
from collections.abc import Callable
from functools import partial
from random import Random

from tests.nightly.chaos.history import History, now
from tests.nightly.soak import LONGEST_OUTAGE_SECONDS, TTL_SECONDS
from tests.nightly.soak.crew import Crew
from tests.nightly.soak.programs import Program
from tests.servers import RedisServer
from tests.stage.brokers import Broker, connect

__all__ = ["Faults", "Timetable"]

PAUSE_SECONDS = (1.0, 7.0)
"""from one fault to the next"""
SHORT, LONG = (0.2, TTL_SECONDS * 0.6), (TTL_SECONDS * 1.2, TTL_SECONDS * 3.5)
"""for which a process is stopped"""
OUTAGE, GAP = (0.5, LONGEST_OUTAGE_SECONDS), (0.0, 3.0)
"""for which the server is stopped, and for which there is none"""


class Timetable:
    """What is to be done later, by one thread."""

    def __init__(self) -> None:
        self._todo: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def later(self, seconds: float, deed: Callable[[], object]) -> None:
        heapq.heappush(self._todo, (now() + seconds, next(self._numbers), deed))

    def run_due(self) -> None:
        while self._todo and self._todo[0][0] <= now():
            heapq.heappop(self._todo)[2]()

    def run_all(self) -> None:
        """What is left, at once."""
        while self._todo:
            heapq.heappop(self._todo)[2]()


class Faults:
    """Strikes at random. What was done is written as chaos writes it, and counted as a deed."""

    def __init__(
        self, crew: Crew, server: RedisServer, broker: Broker, history: History, chance: Random
    ) -> None:
        self._crew, self._server, self._broker = crew, server, broker
        self._write, self._chance = history.write, chance
        self.timetable = Timetable()
        self._stopped: set[int] = set()
        self._server_harmed = False
        self._deployed = itertools.cycle(["worker2", "site2", "plain2"])
        """the next one of these"""
        self._deck: list[Callable[[], str]] = []
        self._deeds = {
            self._kill_child: 3, self._kill_worker: 1, self._kill_plain: 1, self._stop_short: 3,
            self._stop_long: 2, self._pause_server: 2, self._restart_server: 1, self._cut: 1,
            self._deploy: 3,
        }  # fmt: skip

    def begin(self, until: float) -> None:
        """From now on, strike from time to time."""
        pause = self._chance.uniform(*PAUSE_SECONDS)
        if now() + pause < until:
            self.timetable.later(pause, partial(self._strike, until))

    def _strike(self, until: float) -> None:
        if not self._deck:
            # Each comes as often as it is to, also in a short soak.
            self._deck = [deed for deed, times in self._deeds.items() for _ in range(times)]
            self._chance.shuffle(self._deck)
        deed = self._deck.pop()
        if what := deed():
            self._write("deed", deed=deed.__name__.strip("_"), what=what)
        self.begin(until)

    # -- processes

    def _victims(self, *, spared: bool, mains: bool = True) -> list[tuple[Program, int]]:
        """Processes that may be struck, in random order; ``spared``: also those that are to live
        as long as the soak."""
        found = [
            (program, pid) for program in self._crew.working() for pid in [*program.seen]
            if pid not in self._stopped
            and (spared or pid not in self._crew.spared)
            and (mains or pid != program.pid)
        ]  # fmt: skip
        return self._chance.sample(found, len(found))

    def _kill_child(self) -> str:
        for program, pid in self._victims(spared=False, mains=False):
            _signal(pid, signal.SIGKILL)
            return f"{program.name}.{pid}"
        return ""

    def _kill_worker(self) -> str:
        """The main process of a worker, alone or with its children; a new one takes its place."""
        if self._server_harmed:
            return ""
        worker, whole = self._crew.current["worker2"], self._chance.random() < 0.5

        def kill() -> None:
            if whole:
                worker.kill_group()
            else:
                _signal(worker.pid, signal.SIGKILL)

        self._broker.end(worker.pid, kill)
        self._crew.replace("worker2", newer=None)
        return f"{worker.name}, {'all' if whole else 'alone'}"

    def _kill_plain(self) -> str:
        player = self._crew.current["plain2"]
        player.kill_group()
        self._crew.replace("plain2", newer=None)
        return player.name

    def _stop_short(self) -> str:
        return self._stop(self._chance.uniform(*SHORT))

    def _stop_long(self) -> str:
        return self._stop(self._chance.uniform(*LONG))

    def _stop(self, seconds: float) -> str:
        victims = self._victims(spared=True)
        if not victims:
            return ""
        (program, pid), since = victims[0], now()
        whom = f"{program.name}.{pid}"
        _signal(pid, signal.SIGSTOP)
        self._stopped.add(pid)

        def resume() -> None:
            self._stopped.discard(pid)
            if pid in program.seen:
                _signal(pid, signal.SIGCONT)
            self._write("fault", fault="stopped", whom=whom, since=since)

        self.timetable.later(seconds, resume)
        return f"{whom} for {seconds:.1f} s"

    # -- the server

    def _pause_server(self) -> str:
        if self._server_harmed:
            return ""
        self._server_harmed, since = True, now()
        self._server.pause()

        def resume() -> None:
            self._server.resume()
            self._server_harmed = False
            self._write("fault", fault="server paused", whom="", since=since)

        seconds = self._chance.uniform(*OUTAGE)
        self.timetable.later(seconds, resume)
        return f"for {seconds:.1f} s"

    def _restart_server(self) -> str:
        """Killed, and after a moment started again with all that it had answered."""
        if self._server_harmed:
            return ""
        self._server_harmed, since = True, now()
        self._server.kill()

        def restart() -> None:
            self._server.restart()
            self._server_harmed = False
            self._write("fault", fault="server restarted", whom="", since=since)

        seconds = self._chance.uniform(*GAP)
        self.timetable.later(seconds, restart)
        return f"after {seconds:.1f} s"

    def _cut(self) -> str:
        if self._server_harmed:
            return ""
        since, kind = now(), self._chance.choice(["normal", "pubsub"])
        with connect(self._server) as client:
            client.client_kill_filter(_type=kind, skipme=True)
        self._write("fault", fault="cut", whom="", since=since)
        return kind

    # -- deploys

    def _deploy(self) -> str:
        """The other version of the package, in the place of one that ends orderly."""
        place = next(self._deployed)
        program = self._crew.current[place]
        if any(pid in self._stopped for pid in program.seen):
            return ""
        return self._crew.deploy(place)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
