"""Every error, check, finding, log line and exit status has its row on the page, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

from django_tasklock import exceptions
from django_tasklock._engine.skipping import SkipReason
from django_tasklock.cli.run_command import HELD_ELSEWHERE, LOST, OUTAGE
from django_tasklock.operators import row_now
from django_tasklock.signals import OUTCOMES
from tests.pages import ROOT, code, section, table

PAGE = ROOT / "docs/troubleshooting.md"
SOURCES = [
    ast.parse(path.read_text("utf-8"), str(path))
    for path in sorted((ROOT / "django_tasklock").rglob("*.py"))
]


def calls() -> Iterator[ast.Call]:
    for tree in SOURCES:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def text_of(node: ast.expr) -> str | None:
    """A literal text, with one … for each part that is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return None


def texts() -> list[str]:
    """Every text in the package's sources."""
    return [
        text
        for tree in SOURCES
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and (text := text_of(node))
    ]


def first_codes(heading: str, first: str) -> list[str]:
    return [code(row[0])[0] for row in table(PAGE, heading, first)]


def test_exceptions() -> None:
    # By class: an old name is exported beside the new one.
    exported = {getattr(exceptions, name).__name__ for name in exceptions.__all__}
    assert set(first_codes("Exceptions", "Exception")) == exported


def test_how_a_loss_is_told() -> None:
    said = texts()
    for row in table(PAGE, "A lease that was lost", "`LeaseLost` says"):
        for reason in row[0].split(", "):
            assert reason in said, f"nothing says {reason!r}"


def test_system_checks() -> None:
    levels: dict[str, str] = {}
    findings: set[str] = set()
    for call in calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("Error", "Warning", "Info"):
            given = {word.arg: text_of(word.value) for word in call.keywords}
            name = given.get("id") or ""
            if re.fullmatch(r"django_tasklock\.[EWI]\d{3}", name):
                levels[name] = call.func.attr.lower()
        elif isinstance(call.func, ast.Name) and call.func.id == "Finding" and call.args:
            # The admin's class of that name begins with another field.
            findings.update(f"django_tasklock.{name}" for name in [text_of(call.args[0])] if name)
    shown = {code(row[0])[0]: row[1] for row in table(PAGE, "System checks", "Id")}
    assert set(shown) == findings | set(levels)
    assert {name: shown[name] for name in levels} == levels


def test_findings_of_the_doctor() -> None:
    kinds = {
        text_of(call.args[0])
        for call in calls()
        if ast.unparse(call.func) in ("Problem", "Problem.worded", "cls") and call.args
    } - {None}
    shown = set(first_codes("What the doctor finds", "Problem"))
    assert shown == kinds


def test_what_becomes_of_a_row_that_is_sent_again() -> None:
    said = texts()
    for outcome in first_codes("What the doctor finds", "It says"):
        assert any(text.partition(":")[0] == outcome for text in said), outcome


LOGGED = {"info", "warning", "error", "exception"}


def logged() -> dict[str, str]:
    """The texts that are logged, as the page writes them, with their levels."""
    found = {}
    for call in calls():
        if (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == "logger"
            and call.func.attr in LOGGED
        ):
            text = text_of(call.args[0])
            assert text is not None, ast.unparse(call)
            level = call.func.attr.upper().replace("EXCEPTION", "ERROR")
            found[as_shown(text)] = level
    return found


def as_shown(text: str) -> str:
    """A text to be logged, with … for what is filled in."""
    return text.replace("%s[%s]", "…").replace("%s", "…")


def test_log_lines() -> None:
    shown = {code(row[0])[0]: row[1] for row in table(PAGE, "Log lines", "Line")}
    # Said of the one who clears, if that is known.
    shown["lock … in store …, held by …, was cleared…"] = shown.pop(
        "lock … in store …, held by …, was cleared by …"
    )
    assert shown == logged()


def test_who_clears() -> None:
    (row,) = [row for row in table(PAGE, "Log lines", "Line") if "was cleared by" in row[0]][:1]
    said = texts()
    for who in code(row[2]):
        assert who in said, f"nothing is cleared by {who!r}"


def test_exit_statuses_of_run() -> None:
    shown = [
        status for row in table(PAGE, "Exit statuses", "Exit status") for status in code(row[0])
    ]
    assert {str(HELD_ELSEWHERE), str(OUTAGE), str(LOST)} <= set(shown)
    assert {"1", "2", "126", "127", "128"} <= set(shown)
    assert len(shown) == 8


def test_reasons_of_a_skip() -> None:
    step = section(PAGE, "Step 3: what is the reason in the marker?")
    assert set(re.findall(r"^\*\*`(\w+)`:", step, re.MULTILINE)) == set(get_args(SkipReason))
    # A call that is coalesced is an outcome of its own.
    assert set(OUTCOMES["skipped"]) == set(get_args(SkipReason)) - {"coalesced"}


def test_reasons_of_a_row_that_cannot_be_claimed() -> None:
    refusals = {getattr(row_now, name) for name in row_now.__all__ if name.isupper()}
    assert len(refusals) == 5
    rows = table(PAGE, "Step 3: what is the reason in the marker?", "`row now`")
    shown = {word for row in rows for word in code(row[0])}
    assert refusals <= shown
    could = str(row_now.RowNow("a row", "a status", claimed=False, refused=None))
    assert any(could.endswith(f": {word}") for word in shown)
