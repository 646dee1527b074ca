"""What a Prometheus server reads: what was counted, and the state of stores and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import StoreUnavailable, lock, locks
from django_tasklock.guards import StatusGuard
from django_tasklock.testing import outage
from tests import needs
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.inside import MOST_LABELS, LockCollector, counting
from tests.mailroom import mailroom
from tests.servers import RedisServer
from tests.steps import Meanwhile, orphan, silent, taken
from tests.store_cases import redis_cache
from tests.waiting import until

NOBODY_LISTENS = "redis://127.0.0.1:1"


@pytest.fixture(autouse=True)
def library() -> None:
    needs.package("prometheus_client")


@pytest.fixture
def counters(use_redis: UseRedis) -> Iterator[Any]:
    """The counters, which count on Redis until the test ends."""
    use_redis()
    with counting() as counters:
        yield counters


def state(**options: Any) -> Any:
    """A registry with the collector alone."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=True)
    registry.register(LockCollector(**options))
    return registry


def scrape(registry: Any) -> Counter[str]:
    """Our numbers in a registry, by metric and labels; the sums of seconds are left out."""
    from prometheus_client import generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    return Counter({
        " ".join([sample.name.removeprefix("tasklock_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name.startswith("tasklock_")
        and not sample.name.endswith(("_bucket", "_sum", "_created"))
    })  # fmt: skip


@lock("video:{video_id}", slots=2, on_conflict="skip")
def work(video_id: int) -> str:
    return "done"


def test_what_happens_to_locks_and_tasks_is_counted(
    counters: Any, redis_server: RedisServer
) -> None:
    from prometheus_client import REGISTRY

    before = scrape(REGISTRY)
    assert work(1) == work(2) == "done"
    with lock("video:3", slots=2), lock("video:3", slots=2):
        assert work(3) is None
    with outage(), pytest.raises(StoreUnavailable):
        work(4)
    cleared = taken("report")
    assert locks.clear("report")
    assert not cleared.release()
    short = taken("report", ttl=0.01)
    until(lambda: not short.held, "the end of its ttl")
    with mailroom(redis_server.url) as room:
        room.task(lock_name="job:{job}").delay(1)
        with lock("job:1", ttl=60):
            assert room.deliver(room.take())[0] == "SUCCESS"

    # By template, and never by a name that was filled
    asked = {
        "video:{video_id} acquired": 2, "video:{video_id} refused": 1,
        "video:{video_id} unavailable": 1, "other acquired": 5, "job:{job} refused": 1,
    }  # fmt: skip
    assert scrape(REGISTRY) - before == {
        **{f"acquires_total {ask} default": count for ask, count in asked.items()},
        **{f"wait_seconds_count {ask} default": count for ask, count in asked.items()},
        "hold_seconds_count video:{video_id} released default": 2,
        "hold_seconds_count other released default": 3,
        "hold_seconds_count other lost default": 2,
        "leases_lost_total other gone default": 1,
        "leases_lost_total other expired default": 1,
        "locks_cleared_total other cleared default": 1,
        "tasks_not_run_total job:{job} skipped already_processing default": 1,
    }


def test_templates_that_are_made_of_values_get_no_endless_series(
    counters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_templates", set())
    labels = {counters.label_of(f"video:{number}") for number in range(MOST_LABELS + 50)}
    assert len(labels) == MOST_LABELS + 1
    assert "other" in labels


def test_each_lock_is_in_one_state_and_of_a_silent_store_nothing_is_known(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "silent": redis_cache(NOBODY_LISTENS)},
        {"default": {"OPTIONS": {"TAKEOVER": False}}, "silent": {"CACHE": "silent"}},
    )
    for name in ("a", "b", "overwritten"):
        taken(name)
    cache.set("lock:overwritten", "by other code", 600)
    taken("handed").detach()
    assert locks.hold("stopped", 600, by="alice") is not None
    with lock("cooled", hold_at_least=600):
        pass
    orphan("left")
    found = scrape(state(rows=False))
    assert 0 <= found.pop("oldest_lock_age_seconds default") < 600
    assert found == {
        "store_up default": 1, "store_up silent": 0, "waiters default": 0,
        "locks held default": 2, "locks foreign default": 1, "locks detached default": 1,
        "locks operator default": 1, "locks cooling default": 1, "locks orphaned default": 1,
        "locks overdue default": 0,
    }  # fmt: skip


def test_waiters_are_counted_those_for_permits_too(use_redis: UseRedis) -> None:
    use_redis()
    found = scrape(state(rows=False))
    assert not any(name.startswith(("oldest", "longest")) for name in found)
    held = [taken("video:1"), taken("export", slots=2), taken("export", slots=2)]

    def wait_and_release(name: str, slots: int) -> bool:
        won = locks.acquire(name, ttl=60, wait=60, slots=slots)
        return won is not None and won.release()

    asked = [("video:1", 1), ("video:1", 1), ("export", 2), ("export", 2)]
    waiters = [Meanwhile(partial(wait_and_release, name, slots)) for name, slots in asked]
    until(lambda: scrape(state(rows=False))["waiters default"] == 4, "four waiters")
    queued = [*locks.waiters("video:1"), *locks.waiters("export")]
    moments = [owner.waiting_since for owner in queued if owner.waiting_since is not None]
    # Of those that came at the same moment, the one that was first to ask may be the second.
    before = datetime.now(timezone.utc)
    longest = scrape(state(rows=False))["longest_wait_seconds default"]
    assert (before - max(moments)).total_seconds() <= longest
    assert longest <= (datetime.now(timezone.utc) - min(moments)).total_seconds()
    assert scrape(state(rows=False))["locks held default"] == 3
    for lease in held:
        lease.release()
    assert all(waiter.result() for waiter in waiters)


@pytest.mark.django_db(transaction=True)
def test_lost_rows_are_counted_by_their_model_where_all_are_known(
    use_redis: UseRedis, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    lost, registry = "lost_rows app.Job", state()
    guard = StatusGuard(Job, pk="job", source="queued", to="working", done="done")
    with mailroom(redis_server.url) as room:
        room.task(guard=guard)
        assert lost in scrape(registry)
        for status in ("working", "working", "queued"):
            Job.objects.create(status=status)
        with lock(f"job:{Job.objects.create(status='working').pk}"):
            assert scrape(registry)[lost] == 2
        assert scrape(registry)[lost] == 3
        with monkeypatch.context() as patch:
            silent(patch, "get")
            assert lost not in scrape(registry)
    with mailroom(redis_server.url) as room:
        # Given a task whose lock's name does not follow from the row alone
        room.task(guard=guard, lock_name="{job}:{other}")
        assert lost not in scrape(registry)


def test_a_store_that_cannot_list_has_no_gauges_and_to_register_asks_no_store(
    on_locmem: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken("video:1")
    assert scrape(state(rows=False)) == {}
    asked = silent(monkeypatch, "list")
    state()
    assert asked == []
