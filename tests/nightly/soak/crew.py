"""All processes of a soak: who is in which place, in which version, and who has gone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tests.nightly.chaos.history import History, now
from tests.nightly.soak.book import rested_file
from tests.nightly.soak.programs import Kind, Program
from tests.waiting import until

__all__ = ["Crew"]

ENDING_SECONDS = 90.0
"""in which a process ends that was told to"""
START_SECONDS = 120.0
ORPHANED_SECONDS = 15.0
"""for which the children of a worker that was killed may live"""
CELERYS_END = re.compile(
    r"Unrecoverable error: (AttributeError\(.'NoneType' object has no attribute '(hostname|client)'"
    r"|WorkerLostError\('Could not start worker processes'\))"
)
"""The last words of a worker that Kombu's transport for Redis has ended (see `app`), or that Celery
has, because a child was killed at its start. A supervisor starts another worker."""


class Crew:
    """Starts processes, replaces them, and notices who has ended."""

    def __init__(
        self, kinds: Mapping[str, Kind], folder: Path, newer: Path, history: History,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._kinds, self._folder, self._newer = kinds, folder, str(newer)
        self._history, self._environment = history, environment
        self._started: dict[str, int] = {}
        self.current: dict[str, Program] = {}
        self._killed: list[Program] = []
        self._leaving: list[Program] = []
        self._expected: set[str] = set()
        """those that may end by themselves now, by their places"""
        self.spared: set[int] = set()
        """that nobody may kill"""

    # -- starting

    def start(self, *places: str) -> None:
        """Start these, and wait until they are ready."""
        for place in places:
            self._start(place, "")
        until(self._ready, "the processes", START_SECONDS, every=0.2)

    def spare(self) -> None:
        """From now on, some are to live as long as the soak."""
        self.spared = {program.pid for place, program in self.current.items() if place[-1] == "1"}
        self.spared |= {*self.current["site1"].seen, self.current["worker1"].children[0]}

    def _ready(self) -> bool:
        for program in self.current.values():
            program.look()
            assert program.status is None, f"{program.name} ended: {program.log.read_text()}"
        return all(
            len(program.seen) == program.kind.forks + 1
            and (place[:6] != "worker" or _is_ready(program))
            for place, program in self.current.items()
        )

    def _start(self, place: str, version: str) -> None:
        self._started[place] = self._started.get(place, 0) + 1
        name, kind = f"{place}.{self._started[place]}", self._kinds[place]
        environment = dict(self._environment)
        if kind.reloads:
            environment["SOAK_VERSION"] = str(self._file_of(place))
            self._file_of(place).write_text(version)
            version = ""
        self.current[place] = Program(name, kind, self._folder, version, environment)

    def _file_of(self, place: str) -> Path:
        return self._folder / f"{place}.version"

    def replace(self, place: str, newer: bool | None) -> None:
        """Start another one there; ``newer``: in which version, None: in that of the last one."""
        program = self.current[place]
        program.leaving = now()
        self._killed.append(program)
        version = program.version if newer is None else self._newer if newer else ""
        self._start(place, version)

    def deploy(self, place: str) -> str:
        """Have the one there end orderly, and one of the other version begin."""
        program = self.current[place]
        if program.kind.reloads:
            file = self._file_of(place)
            file.write_text("" if file.read_text() else self._newer)
            program.signal(signal.SIGHUP)
            return f"{program.name} to {file.read_text() or 'this tree'}"
        program.leaving = now()
        program.signal(signal.SIGTERM)
        self._leaving.append(program)
        self._start(place, "" if program.version else self._newer)
        return f"{program.name}, to {'this tree' if program.version else self._newer}"

    # -- watching

    def working(self) -> list[Program]:
        """Those that may be struck."""
        return [program for place, program in self.current.items() if place != "sender1"]

    def watch(self) -> None:
        """Write down who has gone; put another one in the place of one that has ended itself."""
        for program in [*self.current.values(), *self._leaving, *self._killed]:
            for pid, since in program.look().items():
                whom = f"{program.name}.{pid}"
                self._history.write("fault", fault="killed", whom=whom, since=since)
        for program in [*self._leaving]:
            self._watch_leaving(program)
        for program in self._killed:
            if now() - (program.leaving or 0.0) > ORPHANED_SECONDS:
                program.kill_group()
        self._killed = [program for program in self._killed if program.seen]
        for place, program in [*self.current.items()]:
            if program.status or (program.status == 0 and place not in self._expected):
                self._died(program)
                self.replace(place, newer=None)

    def _watch_leaving(self, program: Program) -> None:
        if program.status is None and now() - (program.leaving or 0.0) > ENDING_SECONDS:
            error = f"{program.name} does not end after SIGTERM"
            self._history.write("raised", error=error)
            program.kill_group()
        elif program.status is not None:
            # One that was told so just after its start has no handler yet.
            begun = program.kind.forks and _is_ready(program)
            if program.status and (begun or program.status != -signal.SIGTERM):
                self._died(program)
        else:
            return
        self._leaving.remove(program)
        self._killed.append(program)

    def _died(self, program: Program) -> None:
        if CELERYS_END.search(program.log.read_text(errors="replace")):
            self._history.write("deed", deed="ended by Celery", what=program.name)
            return
        whom = f"{program.name}.{program.pid}"
        self._history.write("died", since=now(), whom=whom, status=program.status)

    # -- ending

    def expect_end(self, *places: str) -> None:
        """Those there may end now, with status 0."""
        self._expected |= {*places}

    def rests(self, place: str) -> bool:
        """Whether the one there has done all that it had to, and nobody is on his way out."""
        program = self.current[place]
        ended = program.status is not None
        return (ended or rested_file(program.name).exists()) and not self._leaving

    def ask_where(self, place: str) -> None:
        """The log of a plain process that does not end says where its threads are."""
        self.current[place].signal(signal.SIGUSR1)

    def end_orderly(self) -> None:
        """SIGTERM to all, which end then."""
        self.expect_end(*self.current)
        for program in self.current.values():
            program.leaving = now()
            program.signal(signal.SIGTERM)
            self._leaving.append(program)
        while self._leaving:
            self.watch()
            time.sleep(0.1)

    def kill_all(self) -> None:
        """Whatever state they are in."""
        for program in [*self.current.values(), *self._leaving, *self._killed]:
            program.kill_group()

    def processes(self) -> dict[str, int]:
        """The pids of the spared ones, by what they are."""
        named: dict[str, int] = {}
        for place, program in self.current.items():
            if place[-1] != "1" or program.status is not None:
                continue
            named[f"{place[:-1]} main {program.pid}"] = program.pid
            for pid in program.children:
                if pid in self.spared:
                    named[f"{place[:-1]} child {pid}"] = pid
        return named


def _is_ready(worker: Program) -> bool:
    return " ready." in worker.log.read_text(errors="replace")
