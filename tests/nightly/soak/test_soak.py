"""A minute of a soak breaks no rule; and the rules notice what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nightly.chaos.history import Event
from tests.nightly.chaos.story import Story
from tests.nightly.soak.rules import violations
from tests.seeds import drawn_seed

ROOT = Path(__file__).resolve().parents[3]


def soak(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.nightly.soak", "--seed", str(drawn_seed())]
    command += ["--folder", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
def test_no_rule_is_broken_in_a_minute(tmp_path: Path) -> None:
    # Given workers, a site and plain processes, which are disturbed and deployed for a minute
    done = soak(tmp_path, "--minutes", "1")

    # I expect no two holders, no row that is not done, no error that nothing explains
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    # And enough to have happened
    for what, least in (("granted", 30), ("view", 20), ("done", 10), ("received", 30)):
        times = sum(map(int, re.findall(rf"(\d+) {what}", done.stdout)))
        assert times > least, f"too little happened: {done.stdout}"


A, B = "worker1.1.7/1", "worker2.1.8/1"
"""calls of two processes"""


def tell(at: float, kind: str, call: str = "", **says: Any) -> list[Event]:
    return [Event(at, kind, call.partition("/")[0] or "conductor", call, "row:5", says)]


def runs(call: str, at: float, over: float, fence: int) -> list[Event]:
    granted = tell(at, "granted", call, token=call, fence=fence, end=over + 1, row=5)
    asked = tell(at - 0.1, "asked", call, wait=None, ttl=2)
    return [*asked, *granted, *tell(over, "releasing", call, row=5, finished=True)]


def row(*changes: tuple[str, str, int | None], status: str = "done") -> list[Event]:
    return tell(90, "row", row=5, task="guarded", status=status, changes=[*changes])


def fault(fault: str, since: float, at: float, whom: str = "") -> list[Event]:
    return tell(at, "fault", fault=fault, since=since, whom=whom)


def error(at: float, text: str) -> list[Event]:
    return tell(at, "error", logger="celery", text=text)


ASKED = tell(1, "asked for", row=5, task="guarded", times=1)
TAKEN, DONE = ("new", "processing", 3), ("processing", "done", 3)
REOPENED, DONE4 = ("done", "processing", 4), ("processing", "done", 4)
ONE = [*ASKED, *runs(A, 2, 3, 3)]
GOOD = [*ONE, *row(TAKEN, DONE)]
AGAIN = tell(80, "asked again", row=5, since=1)
REFUSED = error(6, "Cannot connect to redis://127.0.0.1/0")
LOST = error(6, "LeaseLost: the lease of row:5 is over")
DEAD = error(6, "WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL)")
HELD = tell(4, "held", A, end=9)
EQUAL = [*runs(B, 3.5, 4, 3)[1:], *tell(1.95, "asked", B, wait=None, ttl=2)]
"""a run that was granted after another one, and asked for before that"""


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("", GOOD),
        ("", [*GOOD, *runs(B, 5, 6, 4)]),
        ("", [*GOOD, *AGAIN, *fault("server restarted", 20, 21)]),
        ("", [*GOOD, *REFUSED, *fault("server paused", 1, 5)]),
        ("", [*GOOD, *LOST, *fault("stopped", 1, 5, "worker1.1.7")]),
        ("", [*GOOD, *DEAD, *fault("killed", 5, 5.1, "worker1.1.7")]),
        ("", [*GOOD, *error(6, "the lease of the lock seat:1 was lost")]),
        ("two holders", [*ONE[:3], *HELD, *ONE[3:], *row(TAKEN, DONE), *runs(B, 2.5, 4, 4)]),
        ("falling fences", [*GOOD, *runs(B, 5, 6, 2)]),
        ("equal fences", [*ASKED, *row(TAKEN, DONE), *runs(A, 2, 3, 3), *EQUAL]),
        ("row gone", ONE),
        ("row not done", [*ONE, *row(status="new")]),
        ("row not done", [*ONE, *row(TAKEN, ("processing", "failed", 3), status="failed")]),
        ("row stuck in processing", [*ONE, *row(TAKEN, status="processing")]),
        ("row done more than once", [*ONE, *row(TAKEN, DONE, REOPENED, DONE4)]),
        ("row done without its body", [*ASKED, *runs(A, 2, 3, 3)[:2], *row(TAKEN, DONE)]),
        ("falling fences of a row", [*ONE, *row(("new", "processing", 4), DONE)]),
        ("message lost", [*GOOD, *AGAIN]),
        ("message lost", [*GOOD, *AGAIN, *fault("stopped", 20, 21, "worker1.1.7")]),
        ("unexpected error", [*GOOD, *REFUSED]),
        ("unexpected error", [*GOOD, *LOST, *fault("stopped", 70, 75, "worker1.1.7")]),
        ("unexpected error", [*GOOD, *error(6, "KeyError: 5"), *fault("server paused", 1, 5)]),
        ("view without an answer", [*GOOD, *tell(6, "silent view", url="/work/1/")]),
        ("left in Redis", [*GOOD, *tell(91, "left", what="leases: row:5")]),
        ("player raised", [*GOOD, *tell(91, "raised", error="worker2.1 does not end")]),
        ("player died", [*GOOD, *tell(91, "died", whom="worker1.1", since=90, status=1)]),
    ],
)  # fmt: skip
def test_a_history_violates_what_it_should(rule: str, events: list[Event]) -> None:
    story = Story(sorted(events, key=lambda event: event.at))
    assert {violation.rule for violation in violations(story)} == ({rule} - {""})
