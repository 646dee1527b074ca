"""A minute of chaos breaks no rule; and the rules notice what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nightly.chaos.history import Event
from tests.nightly.chaos.rules import violations
from tests.nightly.chaos.story import Story
from tests.seeds import drawn_seed

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(300)
def test_no_rule_is_broken_in_a_minute(tmp_path: Path) -> None:
    # Given processes that use a few locks, while they and their server are disturbed
    command = [sys.executable, "-m", "tests.nightly.chaos", "--seconds", "60"]
    command += ["--seed", str(drawn_seed()), "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    # I expect no two holders, no lost lock, nobody who waits for ever: see `tests.nightly.chaos`
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    # And enough to have happened
    for outcome, least in (("granted", 100), ("refused", 20)):
        times = sum(map(int, re.findall(rf"(\d+) {outcome}", done.stdout)))
        assert times > least, f"too little happened: {done.stdout}"


A, B = "1.1/0/1", "2.1/0/1"
"""calls of two processes"""


def tell(at: float, kind: str, call: str = "", **says: Any) -> list[Event]:
    return [Event(at, kind, call.partition("/")[0] or "conductor", call, "seat:1", says)]


def asks(call: str, at: float, wait: float | None = 9.0) -> list[Event]:
    return tell(at, "asked", call, wait=wait, ttl=9)


def holds(call: str, at: float, over: float, fence: int) -> list[Event]:
    granted = tell(at, "granted", call, token=call, fence=fence, end=at + 9)
    return [*granted, *tell(over, "releasing", call), *tell(over, "released", call, said=True)]


def fault(fault: str, since: float, at: float, whom: str = "") -> list[Event]:
    return tell(at, "fault", fault=fault, since=since, whom=whom)


RENEWED = tell(13, "held", A, end=20)
ONE = [*asks(A, 1), *holds(A, 1.1, 2, 5)]
OTHER = [*asks(B, 1.2), *holds(B, 1.5, 3, 6)]
NEXT = [*asks(B, 1.2), *holds(B, 2.1, 3, 6)]
LOST = [*ONE[:2], *tell(1.5, "lost", A)]
CLEARED = tell(1.4, "cleared", "3.1/0/1", token=A, since=1.3)


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("", [*ONE, *NEXT]),
        ("", [*ONE, *OTHER, *fault("emptied", 1.4, 1.45)]),
        ("", [*asks(A, 1), *holds(A, 1.1, 2, 5)[:1], *OTHER, *fault("killed", 1.4, 1.4, "1.1")]),
        ("", [*LOST, *fault("emptied", 1.4, 1.45)]),
        ("", [*LOST, *CLEARED]),
        ("", [*asks(A, 1), *fault("server paused", 8, 12), *tell(19, "refused", A)]),
        ("", [*asks(A, 1, None), *fault("killed", 5, 5, "1.1"), *tell(90, "begun")]),
        ("two holders", [*ONE, *OTHER]),
        ("two holders", [*ONE[:2], *RENEWED, *fault("emptied", 1.4, 1.45), *OTHER]),
        ("falling fences", [*ONE, *asks(B, 2.1), *holds(B, 2.2, 3, 4)]),
        ("equal fences", [*ONE, *asks(B, 1.05), *holds(B, 2.1, 3, 5)]),
        ("lost", [*LOST, *fault("emptied", 0.4, 0.45)]),
        ("late", [*asks(A, 1), *tell(19, "refused", A)]),
        ("never served", [*asks(A, 1, None), *tell(90, "begun")]),
        ("left in Redis", [*ONE, *tell(9, "left", what="a key")]),
        ("player raised", [*asks(A, 1), *tell(2, "raised", A, error="KeyError")]),
        ("player died", [*ONE, *tell(9, "died", whom="1.1", since=8, status=1)]),
    ],
)
def test_a_history_violates_what_it_should(rule: str, events: list[Event]) -> None:
    story = Story(sorted(events, key=lambda event: event.at))
    assert {violation.rule for violation in violations(story)} == ({rule} - {""})
