"""Leader election: a scheduler runs on every host, and works on one."""

from __future__ import annotations

import time
from itertools import groupby
from typing import Any

from django_tasklock import Lease
from django_tasklock.leader import lead
from example_project.processes import START_SECONDS, NotReady
from example_project.uses.crew import Crew, Shown
from example_project.videos import ledger


def scheduler() -> None:
    """Start this on every host, by ``manage.py`` under a supervisor."""
    lead("scheduler", send_reminders, ttl=15)


def send_reminders(lease: Lease) -> None:
    """Send what is due, again and again, for as long as this process leads."""
    while lease.held:
        ledger.append("reminders")
        time.sleep(0.1)


# ------------------------------------------------------------------------------ shown

REMINDERS = 5


def show(crew: Crew) -> Shown:
    """Two schedulers, of which the one that works is killed."""
    schedulers = {member.pid: member for member in crew.members[-2:]}
    crew.members = crew.members[:-2]
    try:
        for member in schedulers.values():
            member.tell("leader", "scheduler")
        first = _wait_for_reminders(set(schedulers))
        killed = time.time()
        schedulers[first].kill()
        second = _wait_for_reminders(set(schedulers) - {first})
    finally:
        for member in schedulers.values():
            member.end()
    sent = [line for line in ledger.read("reminders") if line["pid"] in schedulers]
    turns = [pid for pid, _ in groupby(line["pid"] for line in sent)]
    worked = {line["pid"] for line in sent if line["at"] < killed}
    after = next(line["at"] for line in sent if line["at"] > killed) - killed
    shown = Shown(
        "leader election",
        f"{len(worked)} of {len(schedulers)} schedulers works and is killed: "
        f"the other one after {after:.2f} s",
    )
    if turns != [first, second]:
        shown.problems.append(f"{len(schedulers)} schedulers worked in {len(turns)} turns")
    return shown


def _wait_for_reminders(pids: set[int]) -> Any:
    """The process of these that has sent some reminders."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        sent = [line["pid"] for line in ledger.read("reminders") if line["pid"] in pids]
        if len(sent) >= REMINDERS:
            return sent[0]
        time.sleep(0.05)
    raise NotReady("no scheduler works")
