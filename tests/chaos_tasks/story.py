"""What a history says of each job, each message and each run of a body."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.history import Event

__all__ = ["Run", "Start", "Story"]

BROKER_SECONDS = 15.0
"""after a broker's fault, in which workers connect anew"""


@dataclass
class Run:
    """One body: ``over`` is None where its process died in it."""

    started: Event
    over: Event | None = None

    @property
    def fence(self) -> int | None:
        fence: int | None = self.started.says["fence"]
        return fence

    @property
    def how(self) -> str:
        return str(self.over.says["how"]) if self.over else "died"


@dataclass
class Start:
    """One delivery that reached the pool: ``ended`` is None where its process died in it."""

    began: Event
    ended: Event | None = None


@dataclass
class Story:
    """The events in order, and by what they are about."""

    events: Sequence[Event]
    sent: dict[str, Event] = field(default_factory=dict)
    """by job: the first event that sent it"""
    ends: dict[str, str] = field(default_factory=dict)
    """by job: how its bodies end"""
    rows: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """by job: what the database wrote, in the order of the database"""
    left: dict[str, Event] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    """by job"""
    starts: dict[str, list[Start]] = field(default_factory=lambda: defaultdict(list))
    """by message"""
    tasks: dict[str, str] = field(default_factory=dict)
    """by message"""
    of_call: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    of_job: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        running: dict[object, Run] = {}
        begun: dict[tuple[str, str], Start] = {}
        for event in self.events:
            if event.call:
                self.of_call[event.call].append(event)
            if event.name:
                self.of_job[event.name].append(event)
            if event.kind == "sent":
                for job in map(str, event.says["jobs"]):
                    self.sent.setdefault(job, event)
                    self.ends[job] = str(event.says["end"])
            elif event.kind == "row":
                self.rows[event.name].append(event)
            elif event.kind == "left":
                self.left[event.name] = event
            elif event.kind == "fault":
                self.faults.append(event)
            elif event.kind == "began":
                start = begun[event.process, event.call] = Start(event)
                self.starts[event.call].append(start)
                self.tasks[event.call] = str(event.says["task"])
            elif event.kind == "ended":
                if (event.process, event.call) in begun:
                    begun.pop((event.process, event.call)).ended = event
            elif event.kind == "started":
                run = running[event.says["run"]] = Run(event)
                self.runs[event.name].append(run)
            elif event.kind == "over" and event.says["run"] in running:
                running[event.says["run"]].over = event
        for entries in self.rows.values():
            entries.sort(key=lambda entry: int(entry.says["id"]))

    def died_in(self, run: Run) -> float | None:
        """When the process of a body was killed in it; None if that is not known."""
        if run.over is not None:
            return None
        pid = run.started.process
        kills = [
            event.at for event in self.of_call[run.started.call]
            if event.kind == "kills itself" and event.process == pid
        ] + [
            float(fault.says["since"]) for fault in self.faults
            if fault.says["fault"] == "child killed" and str(fault.says["whom"]) == pid
        ]  # fmt: skip
        return min((at for at in kills if at >= run.started.at), default=None)

    def killed(self, pid: str, *, since: float) -> bool:
        """Whether a pool process was alive then, and was killed later."""
        return any(
            fault.says["fault"] == "child killed" and str(fault.says["whom"]) == pid
            and float(fault.says["since"]) >= since
            for fault in self.faults
        )  # fmt: skip

    def stopped(self, pid: str, since: float, until: float) -> float:
        """For how many seconds of a stretch a pool process was stopped, at a time."""
        return max(
            (
                min(until, fault.at) - max(since, float(fault.says["since"]))
                for fault in self.faults
                if fault.says["fault"].startswith("child stopped")
                and str(fault.says["whom"]) == pid
            ),
            default=0.0,
        )

    def lock_undisturbed(self, run: Run, until: float) -> bool:
        """Whether a body has its lock while it lives, and whether its worker can clear it until
        then: neither the two nor the Redis of the locks were disturbed, nor was the broker down. A
        worker that waits to connect again does not look at its children."""
        start = next(
            start for start in reversed(self.starts[run.started.call])
            if start.began.process == run.started.process and start.began.at <= run.started.at
        )  # fmt: skip
        own = {run.started.process, str(start.began.says["worker"])}
        return not any(
            event.at >= start.began.at and float(event.says["since"]) <= until
            and (
                str(event.says["fault"]).startswith("locks")
                or event.says["fault"] in ("broker killed", "broker restarted")
                or (str(event.says["whom"]) in own and event.says["fault"] != "child killed")
            )
            for event in self.faults
        )  # fmt: skip

    def emptied(self, since: float, until: float) -> int:
        """How often the Redis of the locks lost its data then."""
        return sum(
            fault.says["fault"] == "locks emptied" and fault.at >= since
            and float(fault.says["since"]) <= until
            for fault in self.faults
        )  # fmt: skip

    def disk_full(self, since: float, until: float) -> bool:
        """Whether the database refused writes at some time then."""
        return any(
            fault.says["fault"] == "disk full" and fault.at >= since
            and float(fault.says["since"]) <= until
            for fault in self.faults
        )  # fmt: skip

    def broker_disturbed(self, at: float) -> bool:
        """Whether the broker was cut off or started again shortly before."""
        return any(
            str(fault.says["fault"]).startswith("broker")
            and float(fault.says["since"]) <= at <= fault.at + BROKER_SECONDS
            for fault in self.faults
        )

    def summary(self) -> str:
        """What was judged, for people."""
        rows = Counter(
            str(event.says["status"]) for job, event in self.left.items() if job in self.sent
        )
        ended = [event for event in self.events if event.kind == "ended"]
        bodies = Counter(run.how for runs in self.runs.values() for run in runs)
        failed = Counter(str(e.says["error"]) for e in self.events if e.kind == "failed")
        not_run = Counter(
            f"{e.says['outcome']} ({e.says['reason']})" for e in self.events if e.kind == "not run"
        )
        redelivered = sum(
            bool(start.began.says["redelivered"]) for all_ in self.starts.values() for start in all_
        )
        calls = Counter({
            "messages": len(self.starts), "sent twice": sum(
                bool(e.says["duplicate"]) for e in self.events if e.kind == "sent"
            ),
            "starts": sum(map(len, self.starts.values())), "redeliveries": redelivered,
            "died": sum(s.ended is None for all_ in self.starts.values() for s in all_),
            "retries": sum(e.says["state"] == "RETRY" for e in ended),
            "sent again": sum(e.kind == "sent again" for e in self.events),
        })  # fmt: skip
        faults = Counter(str(fault.says["fault"]) for fault in self.faults)
        return "\n".join(
            f"{title}: " + (", ".join(f"{n} {what}" for what, n in sorted(of.items())) or "none")
            for title, of in (
                ("rows", rows), ("calls", calls), ("bodies", bodies), ("not run", not_run),
                ("failures", failed), ("faults", faults),
            )
        )  # fmt: skip
