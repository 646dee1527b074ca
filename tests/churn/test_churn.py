"""What counts as growth, and a short run."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.churn.measures import ALLOWED, Measures, grown, table

ROOT = Path(__file__).resolve().parents[2]
START = Measures(3e6, 300, 40, 56, 64, 5e8, 7000, 6000, 1000)


def test_what_stays_is_no_growth() -> None:
    later = replace(START, memory=3.2e6, keys=350, connections=44, files=70, resident=5.1e8)
    assert grown([START, later, START]) == []
    assert grown([START, START, later]) == []


def test_more_turns_have_more_lines() -> None:
    later = replace(START, lines=14_000, warnings=12_000, turns=2000)
    assert grown([START, START, later]) == []


@pytest.mark.parametrize(
    ("what", "later"),
    [
        ("memory", replace(START, memory=4e6)),
        ("keys", replace(START, keys=1000)),
        ("connections", replace(START, connections=80)),
        ("threads", replace(START, threads=70)),
        ("files", replace(START, files=100)),
        ("resident", replace(START, resident=7e8)),
        ("lines a turn", replace(START, lines=14_000)),
        ("warnings a turn", replace(START, warnings=12_000)),
    ],
)
def test_growth_is_told(what: str, later: Measures) -> None:
    assert len(ALLOWED) == 8
    (said,) = grown([START, START, later])
    assert said.startswith(f"{what} grew from ")


def test_the_table_has_a_row_for_each_number() -> None:
    lines = table([START, START], ["at first", "at last"]).splitlines()
    assert lines[0] == "| | at first | at last |"
    assert "| memory of Redis, bytes | 3,000,000 | 3,000,000 |" in lines
    assert len(lines) == 2 + 9


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run() -> None:
    """So short a time tells nothing of growth: `make churn` takes ten minutes."""
    command = [sys.executable, "-m", "tests.churn", "--minutes", "0.1", "--processes", "2"]
    done = subprocess.run(
        [*command, "--locks", "50"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    turns = re.search(r"turns a second .* ([\d,]+) \|", done.stdout)
    assert turns is not None, f"{done.stdout}\n{done.stderr}"
    assert int(turns[1].replace(",", "")) > 0
    assert "threads have died" not in done.stdout
