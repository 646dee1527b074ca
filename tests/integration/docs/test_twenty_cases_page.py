"""The page of hard cases names tests that exist, and each test of a hard case is named there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT

PAGE = ROOT / "docs/explanation/twenty-cases.md"
CASES = {
    int(number): text
    for number, text in re.findall(
        r"^(?:\* \*\*)?(\d+)\. (.+)$", PAGE.read_text("utf-8"), re.MULTILINE
    )
}


def shown_tests(text: str) -> list[tuple[Path, str]]:
    """File and name of each test that a case names."""
    found = re.findall(r"\[`(test_\w+)`\]\(([\w/.]+)\)", text)
    return [((PAGE.parent / path).resolve(), name) for name, path in found]


def test_they_are_counted() -> None:
    assert list(CASES) == [*range(1, 44)]


@pytest.mark.parametrize("number", CASES)
def test_the_tests_of_a_case_are_there(number: int) -> None:
    shown = shown_tests(CASES[number])
    assert shown
    for path, name in shown:
        assert re.search(rf"^ *def {name}\(", path.read_text("utf-8"), re.MULTILINE), name


def test_no_test_of_a_case_is_left_out() -> None:
    there = {
        name
        for path in (ROOT / "tests/acceptance/hard_cases").glob("test_*.py")
        for name in re.findall(r"^def (test_\d\d_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    shown = {name for text in CASES.values() for _, name in shown_tests(text)}
    missing = {name for name in there - shown if not name.startswith("test_00_")}
    assert missing == set()
