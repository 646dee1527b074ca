"""The rules notice each illegal history, and leaves legal ones alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nightly.chaos.history import Event
from tests.nightly.chaos.rules import violations
from tests.nightly.chaos.story import Story

A, B, C = "1.1/0/1", "2.1/0/1", "3.1/0/1"
"""calls of three processes"""


def tell(at: float, kind: str, call: str = "", **says: Any) -> list[Event]:
    return [Event(at, kind, call.partition("/")[0] or "conductor", call, "seat:1", says)]


def asks(call: str, at: float, wait: float | None = 9.0) -> list[Event]:
    return tell(at, "asked", call, wait=wait, ttl=9)


def holds(call: str, at: float, over: float, fence: int) -> list[Event]:
    granted = tell(at, "granted", call, token=call, fence=fence, end=at + 9)
    return [*granted, *tell(over, "releasing", call), *tell(over, "released", call, said=True)]


def sees(at: float, holder: str, *queue: str) -> list[Event]:
    return tell(at, "seen", since=at - 0.01, holder=holder, queue=queue)


def fault(fault: str, since: float, at: float, whom: str = "") -> list[Event]:
    return tell(at, "fault", fault=fault, since=since, whom=whom)


RENEWED = tell(13, "held", A, end=20)
ONE = [*asks(A, 1), *holds(A, 1.1, 2, 5)]
BOTH = [*asks(B, 1.2), *asks(C, 1.3), *sees(1.5, A, B, C)]
OTHER = [*asks(B, 1.2), *holds(B, 1.5, 3, 6)]
PAST = [*ONE, *BOTH, *holds(C, 2.1, 3, 6), *sees(2.2, C, B), *holds(B, 3.1, 4, 7)]


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("", [*ONE, *BOTH, *holds(B, 2.1, 3, 6), *holds(C, 3.1, 4, 7)]),
        ("", [*ONE, *OTHER, *fault("emptied", 1.4, 1.45)]),
        ("", [*asks(A, 1), *holds(A, 1.1, 2, 5)[:1], *OTHER, *fault("killed", 1.4, 1.4, "1.1")]),
        ("", [*PAST, *fault("stopped", 1.9, 2, "2.1")]),
        ("", [*asks(A, 1), *fault("server paused", 8, 12), *tell(19, "refused", A)]),
        ("", [*asks(A, 1, None), *fault("killed", 5, 5, "1.1"), *sees(90, "")]),
        ("two holders", [*ONE, *OTHER]),
        ("two holders", [*ONE[:2], *RENEWED, *fault("emptied", 1.4, 1.45), *OTHER]),
        ("falling fences", [*ONE, *asks(B, 2.1), *holds(B, 2.2, 3, 4)]),
        ("equal fences", [*ONE, *asks(B, 1.05), *holds(B, 2.1, 3, 5)]),
        ("overtaken", PAST),
        ("position lost", [*ONE, *BOTH, *sees(1.6, A, C, B), *tell(1.7, "refused", B)]),
        ("late", [*asks(A, 1), *tell(19, "refused", A)]),
        ("never served", [*asks(A, 1, None), *sees(90, "")]),
        ("left in Redis", [*ONE, *tell(9, "left", what="a key")]),
        ("player raised", [*asks(A, 1), *tell(2, "raised", A, error="KeyError")]),
        ("player died", [*ONE, *tell(9, "died", whom="1.1", since=8, status=1)]),
    ],
)
def test_a_history_violates_what_it_should(rule: str, events: list[Event]) -> None:
    story = Story(sorted(events, key=lambda event: event.at))
    assert {violation.rule for violation in violations(story)} == ({rule} - {""})
