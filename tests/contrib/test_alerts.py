"""The alert rules and the dashboard ask for what the code counts. `tests/nightly/test_alerts.py`
has Prometheus say when they fire."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from django_tasklock.signals import OUTCOMES
from tests import inside, needs
from tests.alerts import RULES, Rule, rules
from tests.pages import DOCS, ROOT, anchors, blocks

PAGE = DOCS / "operations/metrics.md"


@pytest.fixture(autouse=True)
def library() -> None:
    needs.package("prometheus_client")


def labels() -> dict[str, set[str]]:
    """The labels of each metric, by its name."""
    found = {f"tasklock_{each.name}_total": {*each.labels} for each in inside.COUNTERS}
    found |= {f"tasklock_{each.name}_seconds": {*each.labels, "le"} for each in inside.HISTOGRAMS}
    return found | {f"tasklock_{name}": {*said[1:]} for name, said in inside.GAUGES.items()}


def values() -> dict[str, set[str]]:
    """What a label may be that has a closed set of values."""
    asked = {"acquired", "refused", "unavailable", "released", "lost"}
    return {"state": {*inside.STATES.values()}, "outcome": asked | {*OUTCOMES}, "task": {"other"}}


def of_dashboard() -> list[tuple[str, str]]:
    """Each question of the dashboard, with what is written beside its answer."""
    panels = json.loads((DOCS / "operations/grafana.json").read_text("utf-8"))["panels"]
    targets = [target for panel in panels for target in panel["targets"]]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def selectors(expr: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The metrics in a question, each with the labels that it must have."""
    for name, within in re.findall(r"\b(tasklock_\w+)(?:\{([^}]*)\})?", expr):
        matchers = dict(re.findall(r'(\w+)(?:=~|!=|!~|=)"([^"]*)"', within))
        yield re.sub(r"_(bucket|count|sum)$", "", name), matchers


def unknown(expr: str, shown: str) -> list[str]:
    """What a question asks for, or shows, that no metric has."""
    known, wrong = labels(), []
    left = set.intersection(*[known.get(name, set()) for name, _ in selectors(expr)])
    for name, matchers in selectors(expr):
        if name not in known:
            wrong.append(name)
        for label, value in matchers.items():
            is_known = value == "$store" or value in values().get(label, {value})
            if label not in known.get(name, set()) or not is_known:
                wrong.append(f"{name} {label}={value}")
    if by := re.search(r"\bby \(([^)]*)\)", expr):
        kept = {*by[1].split(", ")}
        wrong += [f"by {label}" for label in kept - left]
        left = kept
    said = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)", shown)
    return wrong + [f"shows {label}" for label in said if label not in left]


def test_the_dashboard_asks_for_each_metric_and_for_nothing_else() -> None:
    questions = of_dashboard()
    assert [found for each in questions if (found := unknown(*each))] == []
    assert {name for expr, _ in questions for name, _ in selectors(expr)} == labels().keys()


def test_the_page_names_each_metric_and_no_other() -> None:
    said = re.findall(r"\btasklock_\w+", PAGE.read_text("utf-8"))
    assert {*said} == labels().keys()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.alert)
def test_a_rule_asks_for_what_there_is_and_leads_to_a_page(rule: Rule) -> None:
    assert unknown(rule.expr, rule.summary) == []
    assert rule.severity in ("critical", "warning")
    page, _, anchor = rule.runbook_url.partition("#")
    assert anchor in anchors(ROOT / page)


def test_no_rule_is_overlooked_here() -> None:
    assert [rule.alert for rule in rules()] == re.findall(
        r"alert: *(\w+)", RULES.read_text("utf-8")
    )


def test_what_must_increase_for_an_alert_is_there_before_it_does() -> None:
    """A counter that begins with 1 has not increased: its first event would be passed over."""
    begun = [(f"tasklock_{metric.name}_total", more) for metric, more in inside.AT_ZERO]
    increases = [rule for rule in rules() if "increase(" in rule.expr]
    assert increases
    for rule in increases:
        for name, matchers in selectors(rule.expr):
            assert [
                more for each, more in begun if each == name and {*matchers.values()} <= {*more}
            ]


def test_the_rules_on_the_page_are_rules_of_the_file() -> None:
    (block,) = blocks(PAGE, "yaml")
    shown = re.findall(r"- alert: (\w+)\n +expr: (.+)\n", block.text)
    assert shown
    assert {*shown} <= {(rule.alert, rule.expr) for rule in rules()}
