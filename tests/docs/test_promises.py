"""Each guarantee and each hard case names the tests that hold it, and `make test` runs these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NIGHTLY
from tests.pages import DOCS, ROOT, table

GUARANTEES = DOCS / "explanation/guarantees.md"
PROMISES = table(GUARANTEES, "What is guaranteed", "Guarantee")
HARD_CASES = [(row[0], row[3]) for row in table(GUARANTEES, "What happens when", "Case")]


def named_tests(page: Path, text: str) -> list[tuple[Path, str]]:
    """File and name of each test that a text links to."""
    found = re.findall(r"\[`(test_\w+)`\]\(([\w/.]+)\)", text)
    return [((page.parent / path).resolve(), name) for name, path in found]


def those_by_day(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """The tests of a file, or of a class, but for those that are marked nightly."""
    for each in node.body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if "pytest.mark.nightly" in map(ast.unparse, each.decorator_list):
                continue
            if isinstance(each, ast.ClassDef):
                yield from those_by_day(each)
            else:
                yield each.name


def is_there(path: Path, name: str) -> bool:
    return path.is_file() and f"def {name}(" in path.read_text("utf-8")


def runs_by_day(path: Path, name: str) -> bool:
    """Whether ``make test`` runs this test."""
    if path.is_relative_to(NIGHTLY) or not path.is_file():
        return False
    text = path.read_text("utf-8")
    whole_file_at_night = re.search(r"^pytestmark = .*\bnightly\b", text, re.MULTILINE)
    return not whole_file_at_night and name in those_by_day(ast.parse(text))


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[each[0] for each in PROMISES])
def test_each_guarantee_names_its_tests(promise: str, tests: str) -> None:
    named = named_tests(GUARANTEES, tests)
    assert named, f"{promise!r} names no test"
    missing = [(str(path), name) for path, name in named if not runs_by_day(path, name)]
    assert missing == [], f"`make test` does not run what {promise!r} names"


@pytest.mark.parametrize(("number", "text"), HARD_CASES, ids=[each[0] for each in HARD_CASES])
def test_each_hard_case_runs_by_day(number: str, text: str) -> None:
    """Its other tests may be left to the night."""
    named = named_tests(GUARANTEES, text)
    missing = [(str(path), name) for path, name in named if not is_there(path, name)]
    assert missing == [], f"what case {number} names is not there"
    assert any(runs_by_day(path, name) for path, name in named), f"case {number} runs at night only"


def test_the_hard_cases_are_in_order() -> None:
    numbers = [int(number) for number, _ in HARD_CASES]
    assert numbers == sorted({*numbers})
    assert {*numbers} >= {*range(1, 63)}


def test_each_test_of_a_hard_case_is_named() -> None:
    named = {name for _, text in HARD_CASES for _, name in named_tests(GUARANTEES, text)}
    folder = ROOT / "tests/hard_cases"
    there = {
        name
        for path in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\d\d_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert {name for name in there - named if not name.startswith("test_00_")} == set()
