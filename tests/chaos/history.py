"""What happened in a run: one JSON object a line, one file a process, by one clock for all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django_tasklock._values.clock import now
from tests.lines import whole_lines

__all__ = ["Event", "History", "now", "read"]

CONDUCTOR = "conductor"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history.

    Attributes:
        at: when, in seconds on `now`, which is the same clock for all processes of a machine.
        kind: what happened; `tests.chaos.story` says which there are.
        process: who wrote it: "2.5" is the fifth process in the place 2.
        call: "2.5/1/37", the 37th call of the thread 1; also the name of the thread while the
            call is under way, so that the owner that a store records tells the call. "" for what
            is no call's.
        name: the lock's, or "".
        says: everything else.
    """

    at: float
    kind: str
    process: str
    call: str = ""
    name: str = ""
    says: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{self.at:.6f}", self.call or self.process, self.kind, self.name]
        words += (f"{key}={_shown(value)}" for key, value in self.says.items())
        return " ".join(filter(None, words))

    def as_line(self) -> bytes:
        """The event as a file holds it."""
        fields = {
            "at": self.at, "kind": self.kind, "process": self.process, "call": self.call,
            "name": self.name, **self.says,
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Event:
        """The event of a line. Raises `ValueError` for what is none."""
        fields = json.loads(line)
        at, kind, process, call, name = map(fields.pop, ("at", "kind", "process", "call", "name"))
        return cls(at, kind, process, call, name, fields)


class History:
    """Where one process writes what happens."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{process}.jsonl", flags, 0o644)

    def write(
        self, kind: str, *, at: float | None = None, call: str = "", name: str = "", **says: Any
    ) -> None:
        """Append an event, by default of this moment."""
        moment = now() if at is None else at
        # In one write, which no signal but SIGKILL interrupts.
        os.write(self._file, Event(moment, kind, self.process, call, name, says).as_line())


def read(folder: Path) -> list[Event]:
    """All events of a run, in the order of their moments."""
    events = [
        Event.of_line(line) for path in sorted(folder.glob("*.jsonl")) for line in whole_lines(path)
    ]
    return sorted(events, key=lambda event: event.at)


def _shown(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value).replace(" ", "_")
