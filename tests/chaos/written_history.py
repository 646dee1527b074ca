"""Histories written by hand, for the tests of the checker."""

from __future__ import annotations

from typing import Any

from tests.chaos.checker import check, report
from tests.chaos.history import CONDUCTOR, Event

__all__ = ["NAME", "A", "B", "C", "WrittenHistory"]

NAME = "seat:1"
A, B, C = "0.1/1/1", "1.1/1/1", "2.1/1/1"
"""calls of three processes"""
TTL_SECONDS = 10.0


class WrittenHistory:
    """A history in the making. Moments are in seconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, at: float, kind: str, call: str, name: str = NAME, **says: Any) -> None:
        process = call.partition("/")[0]
        is_call = "/" in call
        self.events.append(Event(at, kind, process, call if is_call else "", name, says))

    def ask(self, at: float, call: str, *, wait: float | None = 0.0, **says: Any) -> None:
        options = {"wait": wait, "ttl": TTL_SECONDS, "renew": False, "verb": "acquire"} | says
        self.tell(at, "asked", call, **options)

    def grant(self, at: float, call: str, fence: int, *, end: float = 0.0, **says: Any) -> None:
        token = says.pop("token", f"token-{call}-{fence}")
        self.tell(
            at, "granted", call, token=token, fence=fence, end=end or at + TTL_SECONDS, **says
        )

    def hold(self, call: str, *moments: float, end: float = 0.0) -> None:
        for at in moments:
            self.tell(at, "held", call, end=end or moments[0] + TTL_SECONDS)

    def release(self, at: float, call: str, *, said: bool = True) -> None:
        self.tell(at, "releasing", call)
        self.tell(at + 0.001, "released", call, said=said)

    def fault(self, fault: str, since: float, at: float, whom: str = "") -> None:
        self.tell(at, "fault", CONDUCTOR, "", fault=fault, since=since, whom=whom)

    def clear(self, at: float, call: str, of: str, fence: int, *, said: bool = True) -> None:
        token = f"token-{of}-{fence}"
        self.tell(at, "clearing", call, token=token, fence=fence)
        self.tell(at + 0.001, "cleared", call, said=said)

    def see(self, at: float, holder: str = "", *queue: str) -> None:
        token = f"token-{holder}" if holder else None
        self.tell(
            at, "seen", CONDUCTOR, since=at - 0.001, token=token, fence=None, holder=holder,
            queue=list(queue),
        )  # fmt: skip

    def see_often(self, since: float, until: float, holder: str = "", *queue: str) -> None:
        for tenth in range(round(since * 10), round(until * 10) + 1):
            self.see(tenth / 10, holder, *queue)

    def rules(self) -> set[str]:
        """The rules that were violated."""
        events = sorted(self.events, key=lambda event: event.at)
        violations, story = check(events)
        said = report(violations, story)
        assert all(violation.text in said for violation in violations)
        return {violation.rule for violation in violations}
