"""docs/operations/metrics.md and the dashboard have the metrics of the code, and no others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from django_tasklock.contrib.lock_labels import MOST_LABELS, own_settings
from django_tasklock.contrib.measures import COUNTERS, HISTOGRAMS
from django_tasklock.operators.lock_state import STATES, lock_state
from tests.conftest import UseRedis
from tests.pages import DOCS, code, table

PAGE = DOCS / "operations/metrics.md"
DASHBOARD = DOCS / "operations/grafana.json"
BY_NAME = {
    **{f"tasklock_{metric.name}_total": metric.labels for metric in COUNTERS},
    **{f"tasklock_{metric.name}_seconds": metric.labels for metric in HISTOGRAMS},
}


def expressions(part: Any) -> list[str]:
    """What the dashboard asks for, wherever it does."""
    if isinstance(part, dict):
        own = [part[key] for key in ("expr", "query") if isinstance(part.get(key), str)]
        return own + [each for value in part.values() for each in expressions(value)]
    if isinstance(part, list):
        return [each for value in part for each in expressions(value)]
    return []


def gauges() -> set[str]:
    return {gauge.name for gauge in lock_state(rows=False)}


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def test_the_page_has_every_metric_with_its_labels() -> None:
    shown = {
        code(name)[0]: tuple(code(labels))
        for name, labels, _ in table(PAGE, "What is counted", "Metric")
    }
    assert shown == BY_NAME
    assert f"After {MOST_LABELS} different templates" in PAGE.read_text("utf-8")


def test_the_page_has_every_gauge_and_state() -> None:
    rows = table(PAGE, "The state of the locks", "Metric")
    assert {code(name)[0] for name, *_ in rows} == gauges()
    (states,) = (text for name, _, text in rows if "tasklock_locks`" in name)
    assert set(code(states)) - {"state"} == set(STATES)
    for gauge in lock_state(rows=False):
        labels = {code(name)[0]: code(text) for name, text, _ in rows}[gauge.name]
        assert all(list(given) == labels for given, _ in gauge.values)


def test_the_page_has_every_key_of_the_setting(settings: Any) -> None:
    keys = {code(key)[0] for key, *_ in table(PAGE, "Settings", "Key of `TASKLOCK_METRICS`")}
    settings.TASKLOCK_METRICS = {key: ["a"] if key == "NAMES" else "a" for key in keys}
    assert set(own_settings()) == keys == {"NAMES", "TOKEN"}


def test_the_dashboard_asks_for_metrics_that_exist_by_labels_that_they_have() -> None:
    asked = expressions(json.loads(DASHBOARD.read_text("utf-8")))
    known = {*BY_NAME, *gauges()}
    named = {name for text in asked for name in re.findall(r"\btasklock_\w+", text)}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} == known
    labels = {"lock", "store", "outcome", "reason", "state", "le"}
    for text in asked:
        for grouped in re.findall(r"by \(([^)]*)\)", text):
            assert set(re.split(r",\s*", grouped)) <= labels, text
        for pairs in re.findall(r"\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)(?:=|!=|=~)\"", pairs)) <= labels, text


def test_the_alerts_of_the_page_ask_for_metrics_that_exist() -> None:
    named = set(re.findall(r"expr: .*?(tasklock_\w+)", PAGE.read_text("utf-8")))
    assert named
    assert named <= {*BY_NAME, *gauges()}
