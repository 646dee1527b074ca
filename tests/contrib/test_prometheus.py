"""What the app for Prometheus counts, and under which labels."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_tasklock import StoreUnavailable, lock, locks, signals
from django_tasklock.contrib import lock_labels
from django_tasklock.contrib.lock_labels import MOST_LABELS, OTHER, label_of, own_settings
from django_tasklock.testing import outage
from tests.conftest import UseRedis
from tests.contrib.conftest import Count
from tests.mailroom import mailroom
from tests.servers import RedisServer
from tests.steps import taken
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture(autouse=True)
def no_label_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_labels, "_seen", set())


@lock("video:{video_id}", on_conflict="skip")
def work(video_id: int) -> str:
    return "done"


def test_acquires_are_counted_by_what_they_got_and_by_the_template(counted: Count) -> None:
    assert work(1) == work(2) == "done"
    with lock("video:3"):
        assert work(3) is None
    with outage(), pytest.raises(StoreUnavailable):
        work(4)
    found = {
        outcome: counted("acquires_total", lock="video:{video_id}", outcome=outcome)
        for outcome in ("acquired", "refused", "unavailable")
    }
    assert found == {"acquired": 2, "refused": 1, "unavailable": 1}
    assert counted("acquires_total", lock=OTHER, outcome="acquired", store="default") == 1
    assert counted("wait_seconds_count", lock="video:{video_id}") == 4
    assert counted("hold_seconds_count", lock="video:{video_id}", outcome="released") == 2


def test_losses_and_clears_are_counted_by_their_cause(counted: Count) -> None:
    lease = taken("video:1")
    assert locks.clear("video:1")
    assert not lease.release()
    short = taken("video:2", ttl=0.01)
    until(lambda: not short.held, "the end of its ttl")
    assert counted("leases_lost_total", reason="gone") == 1
    assert counted("leases_lost_total", reason="expired") == 1
    assert counted("locks_cleared_total", reason="cleared") == 1
    assert counted("hold_seconds_count", outcome="lost") == 2


def test_calls_of_tasks_that_do_not_run_are_counted(
    counted: Count, redis_server: RedisServer
) -> None:
    with mailroom(redis_server.url) as room:
        task = room.task(lock_name="job:{job}", unique_while="queued")
        first, second = task.delay(1), task.delay(1)
        assert first.id == second.id
        with lock("job:1", ttl=60):
            assert room.deliver(room.take())[0] == "SUCCESS"
    labels = {"lock": "job:{job}", "store": "default"}
    skipped = {"outcome": "skipped", "reason": "already_processing"}
    assert counted("tasks_not_run_total", outcome="duplicate", reason="queued", **labels) == 1
    assert counted("tasks_not_run_total", **skipped, **labels) == 1
    assert counted("tasks_not_run_total") == 2


def test_no_name_that_was_filled_becomes_a_label(counted: Count) -> None:
    @lock("export:{customer}", slots=3)
    def export(customer: str) -> None:
        with lock(f"plain:{customer}", slots=2):
            pass

    export("secret-customer")
    from prometheus_client import generate_latest

    text = generate_latest().decode()
    assert "secret-customer" not in text
    assert "#1" not in text
    assert counted("hold_seconds_count", lock="export:{customer}") == 1
    assert counted("hold_seconds_count", lock=OTHER) == 1


@override_settings(TASKLOCK_METRICS={"NAMES": ["nightly", "order:{order_id}:{step}"]})
def test_names_of_the_setting_are_labels_of_plain_names(counted: Count) -> None:
    with lock("nightly"), lock("order:7:pay", slots=2), lock("nightly:7"):
        pass
    for label in ("nightly", "order:{order_id}:{step}", OTHER):
        assert counted("acquires_total", lock=label) == 1, label
    taken("nightly")
    assert locks.clear("nightly")
    assert counted("locks_cleared_total", lock="nightly") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "a",
        {"NAME": []},
        {"NAMES": "nightly"},
        {"NAMES": [1]},
        {"TOKEN": ""},
        {"TOKEN": 1},
        {"NAMES": None},
        {"NAMES": ["nightly", "order:{"]},
    ],
)
def test_a_wrong_setting_is_said(wrong: object) -> None:
    with override_settings(TASKLOCK_METRICS=wrong), pytest.raises(ImproperlyConfigured):
        own_settings()


def test_templates_that_are_made_of_values_get_no_endless_series() -> None:
    labels = {label_of(f"video:{number}", f"video:{number}") for number in range(MOST_LABELS + 50)}
    assert len(labels) == MOST_LABELS + 1
    assert OTHER in labels


def test_nothing_is_counted_and_no_signal_has_receivers_without_the_app() -> None:
    for quiet in ("lock_acquired", "lock_released", "lock_unavailable", "task_not_run"):
        assert not getattr(signals, quiet).has_listeners(), quiet


def test_names_units_and_labels_are_as_prometheus_recommends(counted: Count) -> None:
    work(1)
    from prometheus_client import REGISTRY

    ours = [metric for metric in REGISTRY.collect() if metric.name.startswith("tasklock_")]
    assert len(ours) == 6
    for metric in ours:
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        assert labels <= {"lock", "store", "outcome", "reason"}
        assert metric.type == "counter" or metric.name.endswith("_seconds")
