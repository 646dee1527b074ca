"""The alert rules, as Prometheus reads them: silent before a trouble, and heard after it, of series
that the package itself has exported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from django_tasklock import StoreUnavailable, lock, locks
from django_tasklock.guards import StatusGuard
from django_tasklock.testing import outage
from tests import needs
from tests.alerts import RULES, rules
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.inside import LockCollector, asked, counting, owner_record
from tests.mailroom import mailroom
from tests.servers import RedisServer
from tests.steps import LONG, held_by, server, taken

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# Prometheus reads the series twice a minute: eleven times before the trouble, and then after it.
BEFORE, AFTER, SILENT_AT = 10, 40, "5m"

Series: TypeAlias = dict[str, float]
Scrape: TypeAlias = Callable[[], Series]


class Trouble(NamedTuple):
    """What happens, and what is heard of it."""

    happens: Callable[[Scrape], tuple[Series, Series]]
    labels: dict[str, str]
    summary: str
    heard_at: str = "12m"


def silent_store(scrape: Scrape) -> tuple[Series, Series]:
    before = scrape()
    with outage():
        return before, scrape()


def full_store(scrape: Scrape) -> tuple[Series, Series]:
    before = scrape()
    server().config_set("maxmemory", 1)
    return before, scrape()


def call_without_answer(scrape: Scrape) -> tuple[Series, Series]:
    with lock("video:1"):
        before = scrape()
    with outage(), pytest.raises(StoreUnavailable):
        locks.acquire("video:1")
    return before, scrape()


def no_collector(scrape: Scrape) -> tuple[Series, Series]:
    return scrape(), {}


def dead_host(scrape: Scrape) -> tuple[Series, Series]:
    before = scrape()
    elsewhere = owner_record("videos.process", "id-1") | {"host": "worker-9", "boot": "another"}
    held_by(elsewhere | {"ttl": LONG, "renew": True}, "video:1", ttl=LONG / 2)
    return before, scrape()


def lost_row(scrape: Scrape) -> tuple[Series, Series]:
    guard = StatusGuard(Job, pk="job", source="queued", to="working", done="done")
    with mailroom(server_url()) as room:
        room.task(guard=guard)
        before = scrape()
        Job.objects.create(status="working")
        return before, scrape()


def lost_lease(scrape: Scrape) -> tuple[Series, Series]:
    lease = taken("video:1")
    before = scrape()
    locks.using("default").store.clear("video:1")
    assert not lease.extend()
    return before, scrape()


def job_given_up(scrape: Scrape) -> tuple[Series, Series]:
    with mailroom(server_url()) as room, lock("job:1", ttl=LONG):
        impatient = room.task(on_conflict="retry", lock_retry_for=0)
        patient = room.task(on_conflict="skip")
        patient.delay(1)
        room.deliver(room.take())
        before = scrape()
        impatient.delay(1)
        assert room.deliver(room.take())[0] == "FAILURE"
        return before, scrape()


def job_that_hangs(scrape: Scrape) -> tuple[Series, Series]:
    kept = asked("video:1", task="videos.process", task_id="id-1")
    before, age = (
        scrape(),
        'tasklock_oldest_lock_age_seconds{store="default",task="videos.process"}',
    )
    assert before[age] < LONG
    del kept
    return before, {**before, age: 5 * 3600}


TROUBLES = {
    "LockStoreDown": Trouble(
        silent_store, {"store": "default"},
        "The lock store default does not answer, so nothing gets a lock.",
    ),
    "LockStoreNotWritable": Trouble(
        full_store, {"store": "default"},
        "The lock store default grants no locks. The doctor says why.",
    ),
    "LocksUnavailable": Trouble(
        call_without_answer, {"store": "default"},
        "The lock store default gave callers no answer.",
    ),
    "LockMetricsMissing": Trouble(
        no_collector, {},
        "No LockCollector is scraped, so the state of the locks raises no alert.", "16m",
    ),
    "LocksOverdue": Trouble(
        dead_host, {"store": "default"},
        "A lock in the store default was not renewed in time. Is its host alive?",
    ),
    "LostRows": Trouble(
        lost_row, {"rows": "app.Job"}, "Nobody works on 1 claimed rows of app.Job.",
    ),
    "LeasesLost": Trouble(
        lost_lease, {"lock": "other", "store": "default"},
        "Two runs may have overlapped, for a lease of other was lost.",
    ),
    "JobsGivenUp": Trouble(
        job_given_up, {"lock": "job:{job}", "store": "default", "reason": "held"},
        "A job of job:{job} will not run (held).",
    ),
    "LockHeldForLong": Trouble(
        job_that_hangs, {"store": "default", "task": "videos.process"},
        "The task videos.process has held a lock for 5h 0m 0s.",
    ),
}  # fmt: skip


def server_url() -> str:
    """The Redis on which the locks are."""
    kwargs = server().connection_pool.connection_kwargs
    return f"redis://{kwargs['host']}:{kwargs['port']}"


@pytest.fixture
def scrape(use_redis: UseRedis, own_redis_server: RedisServer) -> Iterator[Scrape]:
    """What Prometheus would read now."""
    needs.package("prometheus_client")
    from prometheus_client import REGISTRY, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    use_redis(own_redis_server.url)

    def read() -> Series:
        series = {}
        for family in text_string_to_metric_families(generate_latest(REGISTRY).decode()):
            for sample in family.samples:
                if sample.name.startswith("tasklock_"):
                    labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                    series[f"{sample.name}{{{labels}}}"] = sample.value
        return series

    collector = LockCollector()
    REGISTRY.register(collector)
    try:
        with counting():
            yield read
    finally:
        REGISTRY.unregister(collector)


def expected(alert: str, trouble: Trouble) -> dict[str, Any]:
    """The alert as `promtool` compares it."""
    (rule,) = [rule for rule in rules() if rule.alert == alert]
    return {
        "exp_labels": {"severity": rule.severity} | trouble.labels,
        "exp_annotations": {"summary": trouble.summary, "runbook_url": rule.runbook_url},
    }


def test_each_rule_has_its_trouble() -> None:
    assert [rule.alert for rule in rules()] == list(TROUBLES)


@pytest.mark.parametrize("alert", TROUBLES)
def test_an_alert_is_silent_before_its_trouble_and_the_only_one_after_it(
    alert: str, scrape: Scrape, tmp_path: Path
) -> None:
    promtool, trouble = needs.program("promtool"), TROUBLES[alert]
    # Given the series before a trouble and after it
    before, after = trouble.happens(scrape)
    series = [
        {
            "series": name,
            "values": f"{before.get(name, '_')}x{BEFORE} {after.get(name, '_')}x{AFTER}",
        }
        for name in {**before, **after}
    ]
    # I expect no alert before it, and after it this one and no other
    heard = [
        {"eval_time": at, "alertname": rule.alert, "exp_alerts": found}
        for rule in rules()
        for at, found in (
            (SILENT_AT, []),
            (trouble.heard_at, [expected(alert, trouble)] if rule.alert == alert else []),
        )
    ]
    test = {"interval": "30s", "input_series": series, "alert_rule_test": heard}
    file = tmp_path / "alerts.test.yml"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [test]})
    )
    done = subprocess.run(
        [promtool, "test", "rules", str(file)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
