"""What happened in a run: one JSON object a line, one file a process, by one clock for all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.inside import clock

__all__ = ["Event", "History", "now", "read"]

now = clock.now


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history; `tests.nightly.chaos.story` says which kinds there are."""

    at: float
    """on `now`, which is the same clock for all processes of a machine"""
    kind: str
    process: str
    """who wrote it: "2.5" is the fifth process in the place 2"""
    call: str = ""
    """"2.5/1/37", the 37th call of the thread 1"""
    name: str = ""
    """the lock's"""
    says: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{self.at:.6f}", self.call or self.process, self.kind, self.name]
        for key, value in self.says.items():
            words.append(f"{key}={value:.6f}" if isinstance(value, float) else f"{key}={value}")
        return " ".join(filter(None, words))


class History:
    """Where one process writes what happens."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{process}.jsonl", flags, 0o644)

    def write(
        self, kind: str, call: str = "", name: str = "", *, at: float | None = None, **says: Any
    ) -> None:
        """Append an event, by default of this moment."""
        fields = [now() if at is None else at, kind, self.process, call, name, says]
        os.write(self._file, json.dumps(fields).encode() + b"\n")


def read(folder: Path) -> list[Event]:
    """All events of a run, in the order of their moments."""
    events = []
    for path in folder.glob("*.jsonl"):
        # Who was killed may have left a last line that is not written to its end.
        lines = path.read_bytes().split(b"\n")[:-1]
        events += [Event(*json.loads(line)) for line in lines]
    return sorted(events, key=lambda event: event.at)
