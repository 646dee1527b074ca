"""Histories written by hand, for the tests of the checker."""

from __future__ import annotations

from typing import Any

from tests.chaos.history import CONDUCTOR, Event
from tests.chaos_tasks.checker import check, report

__all__ = ["JOB", "WORKER", "A", "B", "WrittenHistory"]

JOB = "1"
A, B = "message-a", "message-b"
WORKER = 10
"""the main process of all others"""


class WrittenHistory:
    """A history in the making. Moments are in seconds; a process is a number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._entries = 0
        self._status = "new"
        self._fence: int | None = None

    def tell(self, at: float, kind: str, process: int = 0, call: str = "", **says: Any) -> None:
        name = says.pop("name", JOB if call else "")
        self.events.append(Event(at, kind, str(process or CONDUCTOR), call, name, says))

    def send(self, at: float, call: str, *, end: str = "return", twice: bool = False) -> None:
        self.tell(
            at, "sent", 0, call, jobs=[int(JOB)], ids=[call], end=end, task="skip", duplicate=twice
        )

    def begin(
        self, at: float, call: str, process: int, *, task: str = "skip", again: bool = False
    ) -> None:
        self.tell(
            at, "began", process, call, task=task, retries=0, redelivered=again, worker=WORKER
        )

    def end(
        self, at: float, call: str, process: int, *, skipped: str | None = None, holder: str = ""
    ) -> None:
        self.tell(
            at, "ended", process, call, state="SUCCESS", skipped=skipped, holder=holder or None
        )

    def fail(self, at: float, call: str, process: int, error: str, text: str = "") -> None:
        self.tell(at, "failed", process, call, error=error, text=text)

    def send_again(
        self, at: float, call: str, *, after: str, status: str, end: str = "return", text: str = ""
    ) -> None:
        """``text``: the error that the result backend has of ``after``."""
        self.tell(at, "sent again", 0, call, after={after: text}, status=status, fence=None)
        self.send(at, call, end=end, twice=True)

    def entry(self, at: float, what: str, before: str, after: str, fence: int | None) -> None:
        self._entries += 1
        self.tell(
            at, "row", 0, name=JOB, id=self._entries, what=what, before=before, after=after,
            fence=fence,
        )  # fmt: skip

    def change(self, at: float, before: str, after: str, fence: int) -> None:
        self._status, self._fence = after, fence
        self.entry(at, "status", before, after, fence)

    def start(self, at: float, call: str, process: int, fence: int | None) -> None:
        self.tell(
            at, "started", process, call, run=f"run-{fence}", fence=fence, task="skip", retries=0
        )

    def over(
        self, at: float, call: str, process: int, fence: int, how: str = "end", *, held: bool = True
    ) -> None:
        if how == "end":
            self.entry(at - 0.01, "effect", "", f"run-{fence}", fence)
        self.tell(at, "over", process, call, run=f"run-{fence}", fence=fence, how=how, held=held)

    def run(
        self, at: float, call: str, process: int, fence: int, *, before: str = "new",
        task: str = "skip", again: bool = False,
    ) -> None:  # fmt: skip
        """A whole run, of a second."""
        self.die(at, call, process, fence, before=before, task=task, again=again)
        self.over(at + 0.8, call, process, fence)
        self.change(at + 0.9, "running", "done", fence)
        self.end(at + 1, call, process)

    def die(
        self, at: float, call: str, process: int, fence: int, *, before: str = "new",
        task: str = "skip", again: bool = False,
    ) -> None:  # fmt: skip
        """A run whose process dies in the body."""
        self.begin(at, call, process, task=task, again=again)
        self.change(at + 0.1, before, "running", fence)
        self.start(at + 0.2, call, process, fence)

    def clear(self, at: float, *, cause: str = "worker") -> None:
        self.tell(at, "cleared", WORKER, name=JOB, cause=cause)

    def fault(self, at: float, fault: str, whom: int = 0) -> None:
        self.tell(at, "fault", fault=fault, whom=whom, since=at - 0.1)

    def rest(self, **left: list[str]) -> None:
        nothing: dict[str, Any] = {"locks": [], "queues": [], "reservations": [], "messages": 0}
        self.tell(100, "at rest", unfinished=0, **{**nothing, **left})

    def rules(self) -> set[str]:
        """The rules that were violated, of a run that came to its end."""
        self.tell(101, "left", name=JOB, status=self._status, fence=self._fence)
        if not any(event.kind == "at rest" for event in self.events):
            self.rest()
        violations, story = check(sorted(self.events, key=lambda event: event.at))
        said = report(violations, story)
        assert all(violation.text in said for violation in violations)
        return {violation.rule for violation in violations}
