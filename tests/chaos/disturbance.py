"""When whom was disturbed, and how: what a rule leaves out of its judgement."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tests.chaos.bounds import (
    AFTER_CUT_SECONDS,
    AFTER_MOMENT_SECONDS,
    AFTER_OUTAGE_SECONDS,
    LONGEST_TTL_SECONDS,
    SOCKET_TIMEOUT_SECONDS,
)
from tests.chaos.history import Event

__all__ = ["Disturbance", "Disturbances"]

FAILED_OVER = "failed over"
"""after a kill the replica may not have the last writes: the server has ``EMPTIED`` as well"""
REPLICA_SECONDS = 0.5
"""by which a replica may be behind on a busy machine"""
OUTAGES = frozenset(
    {
        "redis stopped", "clients paused", "proxy paused", "refused", "redis restarted",
        "read only", "out of memory", FAILED_OVER, "clock back",
    }
)  # fmt: skip
"""the server did not answer, or took no writes, or let no lease end"""
EMPTIED = "emptied"
"""the server has forgotten every lease, and every queue"""
CUTS = frozenset({"cut", "subscribers killed", "clients killed", "reply lost"})
"""connections were closed"""
MOMENTS = frozenset({"interrupted", "slow"})
"""what costs a process only moments"""


class Disturbance(NamedTuple):
    """One fault, from the moment before it to the moment after it."""

    kind: str
    since: float
    until: float

    def overlap(self, since: float, until: float) -> float:
        """For how many seconds of the stretch it went on."""
        return max(0.0, min(self.until, until) - max(self.since, since))

    @property
    def felt_until(self) -> float:
        """When a call that it hit is under way again as if nothing had been, at the latest."""
        if self.kind in OUTAGES:
            return self.until + AFTER_OUTAGE_SECONDS
        if self.kind == EMPTIED:
            # A waiter asks at the end of the lease that it knows of.
            return self.until + LONGEST_TTL_SECONDS + AFTER_OUTAGE_SECONDS
        return self.until + (AFTER_CUT_SECONDS if self.kind in CUTS else AFTER_MOMENT_SECONDS)


class Disturbances:
    """All faults of a run, by the process that they disturbed."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.killed: dict[str, float] = {}
        """when each process that was killed, or died, was last known to live"""
        self.emptied: list[Disturbance] = []
        """when the server has forgotten everything, in order"""
        found: defaultdict[str, list[Disturbance]] = defaultdict(list)
        for event in events:
            whom, disturbance = self._of_event(event)
            if disturbance is not None:
                found[whom].append(disturbance)
                if disturbance.kind == EMPTIED:
                    self.emptied.append(disturbance)
        self._of = {whom: _Timeline(these) for whom, these in found.items()}
        began = {x.since for x in found[""] if x.kind == FAILED_OVER}
        self._promoted = [x for x in self.emptied if x.since in began]

    def _of_event(self, event: Event) -> tuple[str, Disturbance | None]:
        """Whom an event disturbed ("": all), and how."""
        says = event.says
        if event.kind == "interrupted" and says["verb"] == "acquire":
            # Its thread may have read for all who wait in its process.
            return event.process, Disturbance("interrupted", event.at, event.at)
        if event.kind == "died" or (event.kind == "fault" and says["fault"] == "killed"):
            self.killed.setdefault(says["whom"], says["since"])
        elif event.kind == "fault":
            return says.get("whom", ""), Disturbance(says["fault"], says["since"], event.at)
        return "", None

    def undone(self, at: float) -> bool:
        """Whether what the server has answered at this moment, a release or a clear, may not have
        happened: its replica took over without it."""
        return any(x.since - REPLICA_SECONDS <= at <= x.until for x in self._promoted)

    def of(self, process: str, since: float, until: float) -> list[Disturbance]:
        """What disturbed a process in a stretch, or so shortly before that it shows in it."""
        lines = (self._of.get(process), self._of.get(""))
        found = [x for line in lines if line is not None for x in line.felt(since, until)]
        dead = self.killed.get(process, math.inf)
        return found + ([Disturbance("killed", dead, math.inf)] if dead <= until else [])

    def hindered(self, process: str, since: float, until: float) -> bool:
        """`of`, without `MOMENTS`."""
        return any(x.kind not in MOMENTS for x in self.of(process, since, until))

    def cost(self, process: str, since: float, until: float) -> float:
        """For how many seconds a process may not have reached the server in a stretch: each
        disturbance costs its own time, and one call that waits for its answer in vain."""
        return sum(
            x.overlap(since - SOCKET_TIMEOUT_SECONDS, until) + SOCKET_TIMEOUT_SECONDS
            for x in self.of(process, since, until)
            if x.kind not in MOMENTS and x.until + SOCKET_TIMEOUT_SECONDS >= since
        )

    def stopped(self, process: str, since: float, until: float) -> float:
        """For how many seconds of a stretch the process was stopped."""
        found = self.of(process, since, until)
        return sum(x.overlap(since, until) for x in found if x.kind in ("stopped", "hiccup"))

    def outage(self, process: str, since: float, until: float) -> float:
        """For how many seconds a process may have been kept from the server in a stretch, the
        time to recover included; 0.0 if nothing was wrong."""
        found = [x for x in self.of(process, since, until) if x.kind in OUTAGES | CUTS]
        return sum(x.felt_until - x.since for x in found)

    def unreachable(self, process: str, since: float, until: float) -> bool:
        """Whether the process may have found the server silent, or its connections closed."""
        return self.outage(process, since, until) > 0 or self.stopped(process, since, until) > 0


class _Timeline:
    """Disturbances in the order in which they began."""

    def __init__(self, found: list[Disturbance]) -> None:
        self._found = sorted(found, key=lambda x: x.since)
        self._begins = [x.since for x in self._found]
        self._longest = max(x.felt_until - x.since for x in found)

    def felt(self, since: float, until: float) -> list[Disturbance]:
        first = bisect.bisect_left(self._begins, since - self._longest)
        last = bisect.bisect_right(self._begins, until)
        return [x for x in self._found[first:last] if x.felt_until >= since]
