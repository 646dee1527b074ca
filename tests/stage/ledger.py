"""What the task bodies did, written outside the database.

Every entry is one line appended with a single ``write`` to a file opened with ``O_APPEND``, so that
lines of many processes never mix and a killed process loses at most the line it did not write.
Times are ``time.monotonic()``, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PATH_VARIABLE = "STAGE_LEDGER"


@dataclass(frozen=True)
class Entry:
    event: str
    at: float
    pid: int
    data: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Run:
    """One execution of a task body: ``end`` is infinite if it did not say that it is over."""

    start: Entry
    end: float
    completed: bool

    def lasts_into(self, later: Run) -> bool:
        """Whether this run was not over yet when a later one started. Of a run that was killed,
        the later one knows: it has looked whether its process lived."""
        if self.end == float("inf"):
            return self.start.run in later.start.beside
        return later.start.at < self.end


def write(event: str, **data: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **data})
    handle = os.open(os.environ[PATH_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


class Ledger:
    """Reads the entries back and counts what they say; each is read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._entries: list[Entry] = []
        self._next = 0
        self._reading = threading.Lock()

    def entries(self, *events: str, **match: Any) -> list[Entry]:
        """Every entry of these events (all, if none is named) whose data match."""
        return [
            entry
            for entry in self._read()
            if (not events or entry.event in events) and match.items() <= entry.data.items()
        ]

    def runs(self, **match: Any) -> list[Run]:
        """The executions of task bodies, oldest first."""
        ends = {entry.run: entry for entry in self.entries("end", "broke")}
        runs = []
        for start in self.entries("start", **match):
            end = ends.get(start.run)
            at, completed = (end.at, end.event == "end") if end else (float("inf"), False)
            runs.append(Run(start, at, completed))
        return sorted(runs, key=lambda run: run.start.at)

    def overlaps(self, **match: Any) -> list[tuple[Run, Run]]:
        """Pairs of runs that were between their start and their end at the same time."""
        runs = self.runs(**match)
        return [
            (first, second)
            for index, first in enumerate(runs)
            for second in runs[index + 1 :]
            if first.lasts_into(second)
        ]

    def completions(self, **match: Any) -> int:
        return len(self.entries("end", **match))

    @staticmethod
    def clock() -> float:
        """Now, by the clock of the entries."""
        return time.monotonic()

    def _read(self) -> list[Entry]:
        if not self.path.exists():
            return []
        with self._reading, self.path.open("rb") as file:
            file.seek(self._next)
            whole = file.read().rpartition(b"\n")[0]  # The last line may be written right now.
            for line in whole.splitlines():
                data = json.loads(line)
                entry = Entry(data.pop("event"), data.pop("at"), data.pop("pid"), data)
                self._entries.append(entry)
            if whole:
                self._next += len(whole) + 1
            return self._entries.copy()


@cache
def here() -> Ledger:
    """The ledger named by the environment; one for a process, which reads each entry once."""
    return Ledger(os.environ[PATH_VARIABLE])
