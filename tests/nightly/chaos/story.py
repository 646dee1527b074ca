"""The history, put together: calls, and what each lease's holder knew of it.

The kinds of events, and what they say beside the call and the lock's name:

* of a call: ``asked`` (wait, ttl), then ``granted`` (token, fence, end: when the lease is over by
  its holder's clock, or later), or ``refused``;
* of its lease: ``held`` (end), ``lost``, ``releasing``, ``released`` (said);
* of either: ``unavailable`` (reason), ``raised`` (error);
* of an operator's clear: ``clearing``, ``cleared`` (token, since);
* of the conductor: ``fault`` (fault, whom: "" for all, since), ``died`` (whom, since, status),
  ``left`` (what).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.nightly.chaos import LONGEST_TTL_SECONDS
from tests.nightly.chaos.history import Event

__all__ = ["Call", "Disturbance", "Story"]

FELT_SECONDS = {
    "server paused": 4.0, "server restarted": 4.0, "cut": 2.0, "reply lost": 2.0,
    # A waiter asks at the end of the lease that it knows of.
    "emptied": LONGEST_TTL_SECONDS + 4.0,
}  # fmt: skip
"""after a fault: until a call is under way again as if nothing had been (its reply times out, it
connects anew, subscribes, and asks again); a second after all others"""
MOMENT_SECONDS = 0.002
"""by which a clock that counts in milliseconds may differ"""


class Disturbance(NamedTuple):
    """One fault, from the moment before it to the moment after it."""

    kind: str
    since: float
    until: float

    @property
    def felt_until(self) -> float:
        return self.until + FELT_SECONDS.get(self.kind, 1.0)


@dataclass(slots=True)
class Call:
    """A call that asks for a lock, and the lease that it got, as its holder knew it."""

    id: str
    process: str
    name: str
    asked: float
    wait: float | None
    ttl: float
    over: float | None = None
    """None: never"""
    outcome: str = "never over"
    token: str = ""
    fence: int = 0
    start: float = 0.0
    """the call had returned, with a lease"""
    end: float = 0.0
    """the latest moment of which it is known that the holder could believe in the lease"""
    own_end: float = 0.0
    """when, at the earliest, it is over by the holder's clock"""
    releasing: float | None = None
    left: float | None = None
    """when it was released, lost or given up"""
    lost: float | None = None
    """when its holder was told so"""

    def __str__(self) -> str:
        lease = f"{self.token}, fence {self.fence}, {self.start:.6f} to {self.end:.6f}"
        return f"{self.name} of {self.id} ({lease})"


class Story:
    """What a run's events tell."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.killed: dict[str, float] = {}
        """when each process was last known to live"""
        self._faults: defaultdict[str, list[Disturbance]] = defaultdict(list)
        """by the process that they disturbed, "" for all"""
        self._clears: defaultdict[str, dict[str, Disturbance]] = defaultdict(dict)
        """of each token, by the call; until the answer"""
        self.calls: dict[str, Call] = {}
        self.leases: defaultdict[str, list[Call]] = defaultdict(list)
        """by the lock's name: the calls that got one, in the order in which they returned"""
        self.end = events[-1].at
        for event in events:
            if event.kind == "died" or event.says.get("fault") == "killed":
                self.killed.setdefault(event.says["whom"], event.says["since"])
            elif event.kind == "fault":
                found = Disturbance(event.says["fault"], event.says["since"], event.at)
                self._faults[event.says["whom"]].append(found)
            elif event.kind in ("clearing", "cleared"):
                over = event.at if event.kind == "cleared" else math.inf
                found = Disturbance(event.kind, event.says["since"], over)
                self._clears[event.says["token"]][event.call] = found
            elif event.kind == "asked" or event.call in self.calls:
                self._add(event)
        for lease in (call for call in self.calls.values() if call.token):
            self._end(lease)

    def disturbed(self, process: str, since: float, until: float) -> list[Disturbance]:
        """What disturbed a process in a stretch, or so shortly before that it shows in it."""
        both = (*self._faults[process], *self._faults[""])
        found = [x for x in both if x.since <= until and x.felt_until >= since]
        dead = self.killed.get(process, math.inf)
        return found + [Disturbance("killed", dead, math.inf)] * (dead <= until)

    def forgotten(self, lease: Call) -> list[Disturbance]:
        """Each moment in which the server may have forgotten it: it was cleared, or all was."""
        emptied = [fault for fault in self._faults[""] if fault.kind == "emptied"]
        return [*emptied, *self._clears[lease.token].values()]

    def _add(self, event: Event) -> None:
        says = event.says
        if event.kind == "asked":
            asked = (event.call, event.process, event.name, event.at, says["wait"], says["ttl"])
            self.calls[event.call] = Call(*asked)
            return
        call = self.calls[event.call]
        match event.kind:
            case "granted":
                call.over, call.outcome = event.at, event.kind
                call.token, call.fence, call.own_end = says["token"], says["fence"], says["end"]
                call.start = call.end = event.at
                self.leases[call.name].append(call)
            case "held":
                call.end, call.own_end = max(call.end, event.at), says["end"]
            case "releasing":
                call.releasing = event.at
            case _ if call.over is None:
                call.over, call.outcome = event.at, event.kind
            case _:
                call.left = event.at
                if event.kind == "lost" or not says.get("said", True):
                    call.lost = call.lost or event.at
                if says.get("said") and call.releasing is not None:
                    # Nothing is released that was not held when it was asked for.
                    call.end = max(call.end, call.releasing)

    def _end(self, lease: Call) -> None:
        """Say how long the holder of a lease could believe in it."""
        if lease.left is None:
            # Killed, or still at it when the run ended.
            ends = [lease.own_end, self.killed.get(lease.process, self.end)]
            ends += [] if lease.releasing is None else [lease.releasing]
            lease.end = max(lease.end, min(ends))
        over = max(lease.end, lease.left or 0.0)
        for ended in self.forgotten(lease):
            # A grant whose reply was on its way may have been forgotten as well, or a lease while
            # its release was on the way. But nothing that was forgotten can be renewed.
            renewed = lease.own_end > ended.until + lease.ttl + MOMENT_SECONDS
            if lease.asked < ended.until and ended.since < over and not renewed:
                lease.end = max(min(lease.end, ended.since), lease.start)
