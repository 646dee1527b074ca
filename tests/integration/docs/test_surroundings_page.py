"""The page of surroundings names tests that exist, and all of those that there are."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT

PAGE = ROOT / "docs/operations/surroundings.md"
ROWS = [
    line
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Tool")
]
FOUND = r"\[`(test_\w+)`\]\(([\w/.]+)\)"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_the_tests_of_a_tool_are_there(row: str) -> None:
    shown = re.findall(FOUND, row.split("|")[4])
    assert shown
    for name, path in shown:
        text = (PAGE.parent / path).resolve().read_text("utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), name


def test_no_test_is_left_out() -> None:
    there = {
        name
        for path in (ROOT / "tests/nightly/surroundings").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert there - {name for name, _ in re.findall(FOUND, PAGE.read_text("utf-8"))} == set()
