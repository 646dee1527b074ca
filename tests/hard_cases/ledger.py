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
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PATH_VARIABLE = "HARD_CASES_LEDGER"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

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
    """One execution of a task body: ``end`` is infinite while nothing says that it is over."""

    start: Entry
    end: float
    completed: bool
    killed: bool
    """Nothing but the death of its process says that it is over."""

    def lasts_into(self, later: Run) -> bool:
        """Whether this run was not over yet when a later one started."""
        if later.start.at >= self.end:
            return False
        if self.killed and self.start.processes == later.start.processes:
            # Who watches for a death notes it when it gets to it: who starts looks for itself.
            return self.start.run in later.start.beside
        return True


def write(event: str, **data: Any) -> None:
    """Append one entry to the ledger named by the environment."""
    append(os.environ[PATH_VARIABLE], event, **data)


def append(path: str | Path, event: str, **data: Any) -> None:
    """Append one entry to this ledger; ``at`` and ``pid`` may be given, else they are ours, now."""
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **data})
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
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
        return _matching(self._read(), events, match)

    def runs(self, **match: Any) -> list[Run]:
        """The executions of task bodies, oldest first.

        A run is over at its own ``end`` entry, or at the ``death`` entry of its process.
        """
        entries = self._read()
        ends = {entry.run: entry.at for entry in entries if entry.event in ("end", "broke")}
        completed = {entry.run for entry in entries if entry.event == "end"}
        deaths: dict[int, list[float]] = {}
        for entry in entries:
            if entry.event == "death":
                deaths.setdefault(int(entry.data["of"]), []).append(entry.at)
        runs = []
        for start in _matching(entries, ("start",), match):
            later = [at for at in deaths.get(start.pid, []) if at >= start.at]
            end = min([ends.get(start.run, float("inf")), *later])
            runs.append(Run(start, end, start.run in completed, start.run not in ends))
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
        """How many bodies ran to their end."""
        return len(self.entries("end", **match))

    @staticmethod
    def clock() -> float:
        """Now, by the clock of the entries."""
        return time.monotonic()

    def tail(self, lines: int = 200) -> str:
        """The last lines as text, for a failing test."""
        if not self.path.exists():
            return "(empty)"
        return "\n".join(self.path.read_text().splitlines()[-lines:])

    def _read(self) -> list[Entry]:
        if not self.path.exists():
            return []
        with self._reading:
            with self.path.open("rb") as file:
                file.seek(self._next)
                # The last line may be written right now.
                whole = file.read().rpartition(b"\n")[0]
            for line in whole.splitlines():
                data = json.loads(line)
                entry = Entry(data.pop("event"), data.pop("at"), data.pop("pid"), data)
                self._entries.append(entry)
            if whole:
                self._next += len(whole) + 1
            return self._entries.copy()


def _matching(
    entries: Iterable[Entry], events: tuple[str, ...], match: dict[str, Any]
) -> list[Entry]:
    return [
        entry
        for entry in entries
        if (not events or entry.event in events)
        and all(entry.data.get(key) == value for key, value in match.items())
    ]


@cache
def here() -> Ledger:
    """The ledger named by the environment; one for a process, which reads each entry once."""
    return Ledger(os.environ[PATH_VARIABLE])
