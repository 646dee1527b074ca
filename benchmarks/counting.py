"""What Redis was asked to do, counted by Redis itself: the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Counter", "Counts"]


@dataclass(frozen=True)
class Counts:
    """What happened between two looks.

    ``trips`` are the reads from sockets: one for every request that was sent by itself, and is
    not longer than what the server reads at once (16 KiB).
    ``commands`` counts those inside scripts too; ``microseconds`` is the processor time of the
    server's process, the one number here that depends on the machine.
    """

    trips: int
    commands: int
    microseconds: float
    by_command: dict[str, int]

    def seconds_each(self, times: int) -> float:
        """The server's processor seconds for one of so many works; never 0, to divide by it."""
        return max(self.microseconds, 1.0) / 1_000_000 / times


@dataclass(frozen=True)
class _Look:
    trips: int
    calls: dict[str, int]
    seconds: float


class Counter:
    """Counts from when it was made, or last asked. Its own questions are left out."""

    QUESTIONS = 3

    def __init__(self, client: Any) -> None:
        self._client = client
        self._last = self._look()

    def restart(self) -> None:
        self._last = self._look()

    def counts(self) -> Counts:
        """What was asked since the last look."""
        before, now = self._last, self._look()
        self._last = now
        calls = {
            command: count - before.calls.get(command, 0)
            for command, count in now.calls.items()
            if command != "info" and count > before.calls.get(command, 0)
        }
        microseconds = (now.seconds - before.seconds) * 1_000_000
        trips = now.trips - before.trips - self.QUESTIONS
        return Counts(trips, sum(calls.values()), microseconds, calls)

    def _look(self) -> _Look:
        cpu = self._client.info("cpu")
        stats = self._client.info("commandstats")
        trips = int(self._client.info("stats")["total_reads_processed"])
        calls = {key[8:]: int(value["calls"]) for key, value in stats.items()}
        return _Look(trips, calls, cpu["used_cpu_user"] + cpu["used_cpu_sys"])
