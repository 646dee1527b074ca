"""What a Prometheus server reads: what was counted, and the state of stores and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, StoreUnavailable, lock, locks
from django_tasklock.guards import StatusGuard
from django_tasklock.signals import OUTCOMES
from django_tasklock.testing import outage
from tests import needs
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.inside import MOST_LABELS, LockCollector, age, asked, counting, label_of, owner_record
from tests.mailroom import mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, held_by, holder, orphan, server, silent, taken
from tests.store_cases import redis_cache
from tests.waiting import until

NOBODY_LISTENS = "redis://127.0.0.1:1"


@pytest.fixture(autouse=True)
def library() -> None:
    needs.package("prometheus_client")


@pytest.fixture
def counters(use_redis: UseRedis) -> Iterator[None]:
    """The counters count on Redis until the test ends."""
    use_redis()
    with counting():
        yield


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
    counters: None, redis_server: RedisServer
) -> None:
    from prometheus_client import REGISTRY

    before = scrape(REGISTRY)
    assert work(1) == work(2) == "done"
    with lock("video:3", slots=2), lock("video:3", slots=2):
        assert work(3) is None
    with outage(), pytest.raises(StoreUnavailable):
        work(4)
    for task, task_id in ((None, None), ("locks run dump 5.1.", None), ("videos.process", "id-1")):
        cleared = asked("report", task=task, task_id=task_id)
        assert isinstance(cleared, Lease)
        assert locks.clear("report")
        assert not cleared.release()
    short = taken("report", ttl=0.01)
    until(lambda: not short.held, "the end of its ttl")
    with mailroom(redis_server.url) as room:
        room.task(lock_name="job:{job}").delay(1)
        with lock("job:1", ttl=60):
            assert room.deliver(room.take())[0] == "SUCCESS"

    # By template, and never by a name that was filled
    outcomes = {
        "video:{video_id} acquired": 2, "video:{video_id} refused": 1,
        "video:{video_id} unavailable": 1, "other acquired": 7, "job:{job} refused": 1,
    }  # fmt: skip
    assert scrape(REGISTRY) - before == {
        **{f"acquires_total {ask} default": count for ask, count in outcomes.items()},
        **{f"wait_seconds_count {ask} default": count for ask, count in outcomes.items()},
        "hold_seconds_count video:{video_id} released default": 2,
        "hold_seconds_count other released default": 3,
        "hold_seconds_count other lost default": 4,
        "leases_lost_total other gone default": 3,
        "leases_lost_total other expired default": 1,
        # By task; a command's arguments may be other ones each day.
        "locks_cleared_total cleared default other": 2,
        "locks_cleared_total cleared default videos.process": 1,
        "tasks_not_run_total job:{job} skipped already_processing default": 1,
    }


def test_what_alerts_ask_for_is_there_at_0_from_the_first_acquire_on(counters: None) -> None:
    """A series that begins with 1 has not increased: the first lost lease of a lock, and the first
    job that is given up, would raise no alert."""
    from prometheus_client import REGISTRY

    @lock("film:{film}")
    def show(film: int) -> None:
        pass

    # Given a lock that nobody has asked for
    assert not any("film:{film}" in series for series in scrape(REGISTRY))
    show(1)
    at_zero = {series for series, value in scrape(REGISTRY).items() if value == 0}
    assert {series.replace(" film:{film}", "") for series in at_zero if "film:" in series} == {
        "acquires_total unavailable default",
        *(f"leases_lost_total {cause} default" for cause in ("expired", "gone")),
        *(f"tasks_not_run_total given_up {why} default" for why in OUTCOMES["given_up"]),
    }


def test_templates_that_are_made_of_values_get_no_endless_series(counters: None) -> None:
    labels = {label_of(f"video:{number}") for number in range(MOST_LABELS + 50)}
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
    overdue = owner_record("videos.process", "id-1") | {"ttl": LONG, "renew": True}
    held_by(overdue, "late", ttl=LONG / 2)
    found = scrape(state(rows=False))
    for task in ("other", "videos.process"):
        assert 0 <= found.pop(f"oldest_lock_age_seconds default {task}") < 600
    assert found == {
        "store_up default": 1, "store_up silent": 0, "waiters default": 0,
        "store_writable default": 1,
        "locks held default": 2, "locks foreign default": 1, "locks detached default": 1,
        "locks operator default": 1, "locks cooling default": 1, "locks orphaned default": 1,
        "locks overdue default": 1,
    }  # fmt: skip


def test_the_oldest_age_is_by_task_and_of_leases_alone(use_redis: UseRedis) -> None:
    use_redis()
    oldest = "oldest_lock_age_seconds default"
    # Given locks under which nobody works now
    taken("handed").detach()
    locks.hold("stopped", 600, by="alice")
    with lock("cooled", hold_at_least=600):
        pass
    assert not any(series.startswith(oldest) for series in scrape(state(rows=False)))
    kept = [
        asked(name, task="videos.process", task_id=f"id of {name}") for name in ("first", "last")
    ]
    kept.append(asked("scheduler", task="lead run"))
    least = age(holder("first").acquired_at)
    found = scrape(state(rows=False))
    assert least <= found[f"{oldest} videos.process"] <= age(holder("first").acquired_at)
    # A leader is no task: it may lead for weeks.
    assert found[f"{oldest} other"] < found[f"{oldest} videos.process"]
    del kept


def test_a_full_store_is_up_and_cannot_be_written(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    own = server().config_set
    assert scrape(state(rows=False))["store_writable default"] == 1
    own("maxmemory", 1)
    found = scrape(state(rows=False))
    assert (found["store_up default"], found["store_writable default"]) == (1, 0)
    own("maxmemory", 0)
    assert scrape(state(rows=False))["store_writable default"] == 1


def test_waiters_are_counted_those_for_permits_too(use_redis: UseRedis) -> None:
    use_redis()
    found = scrape(state(rows=False))
    assert not any(name.startswith(("oldest", "longest")) for name in found)
    held = [taken("video:1"), taken("export", slots=2), taken("export", slots=2)]

    def wait_and_release(name: str, slots: int) -> bool:
        won = locks.acquire(name, ttl=60, wait=60, slots=slots)
        return won is not None and won.release()

    wanted = [("video:1", 1), ("video:1", 1), ("export", 2), ("export", 2)]
    waiters = [Meanwhile(partial(wait_and_release, name, slots)) for name, slots in wanted]
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
    guard_of = partial(StatusGuard, Job, pk="job", source="queued", done="done")
    guard = guard_of(to="working")
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
        # And one row for two tasks, and one of another store
        fence = guard_of(fence_field="lock_fence", to="claimed")
        for name in ("film.first", "film.second"):
            room.task(name=name, guard=fence)
        Job.objects.create(status="claimed")
        Job.objects.create(status="claimed", lock_fence=1_700_000_000_000_000)
        assert scrape(registry)[lost] == 5
    with mailroom(redis_server.url) as room:
        # Given a task whose lock's name does not follow from the row alone
        room.task(guard=guard, lock_name="{job}:{other}")
        assert lost not in scrape(registry)


def test_of_a_store_that_cannot_list_a_write_alone_tells_and_to_register_asks_no_store(
    on_locmem: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken("video:1")
    assert scrape(state(rows=False)) == {"store_writable default": 1}
    verbs = silent(monkeypatch, "list")
    state()
    assert verbs == []
