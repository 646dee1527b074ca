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


def named_tests(text: str) -> list[tuple[Path, str]]:
    """File and name of each test to which a text of the page links."""
    found = re.findall(r"\[`(test_\w+)`\]\(([\w/.]+)\)", text)
    return [((GUARANTEES.parent / path).resolve(), name) for name, path in found]


def those_in(body: list[ast.stmt], *, by_day: bool) -> Iterator[str]:
    """The tests of a file, or of a class; by day those that are not marked nightly."""
    for each in body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if by_day and "pytest.mark.nightly" in map(ast.unparse, each.decorator_list):
                continue
            yield each.name
            yield from those_in(each.body, by_day=by_day) if isinstance(each, ast.ClassDef) else ()


def is_there(path: Path, name: str, *, by_day: bool = False) -> bool:
    """Whether there is such a test; or, by day, whether ``make test`` runs it."""
    text = path.read_text("utf-8") if path.is_file() else ""
    whole_file_at_night = re.search(r"^pytestmark = .*\bnightly\b", text, re.MULTILINE)
    if by_day and (path.is_relative_to(NIGHTLY) or whole_file_at_night):
        return False
    return name in those_in(ast.parse(text).body, by_day=by_day)


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[each[0] for each in PROMISES])
def test_each_guarantee_names_tests_that_run_by_day(promise: str, tests: str) -> None:
    # Given a row of the table of guarantees, I expect it to name tests
    named = named_tests(tests)
    assert named, f"{promise!r} names no test"

    # And `make test` to run them
    assert [each for each in named if not is_there(*each, by_day=True)] == []


@pytest.mark.parametrize(("number", "text"), HARD_CASES, ids=[each[0] for each in HARD_CASES])
def test_each_hard_case_runs_by_day(number: str, text: str) -> None:
    """Its other tests may be left to the night."""
    named = named_tests(text)
    assert [each for each in named if not is_there(*each)] == []
    assert any(is_there(*each, by_day=True) for each in named), f"case {number} runs at night only"


def test_the_hard_cases_are_in_order_and_name_every_test_of_theirs() -> None:
    numbers = [int(number) for number, _ in HARD_CASES]
    assert numbers == sorted({*numbers})
    assert {*numbers} >= {*range(1, 63)}
    named = {name for _, text in HARD_CASES for _, name in named_tests(text)}
    texts = [path.read_text("utf-8") for path in (ROOT / "tests/hard_cases").glob("test_*.py")]
    there = re.findall(r"^def (test_(?!00)\d\d_\w+)\(", "".join(texts), re.MULTILINE)
    assert {*there} - named == set()
