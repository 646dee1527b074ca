"""The state of locks and rows as gauges: what is there, and nothing of what is not known."""

from __future__ import annotations

import io
import os
import re
from functools import partial
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_tasklock import lock, locks
from django_tasklock._values.describe import age
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.guards import StatusGuard
from django_tasklock.operators.exposition import Gauge, as_text
from django_tasklock.operators.lock_state import STATES, lock_state
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.testing import outage
from tests import needs
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.mailroom import mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, in_child, silent, taken
from tests.waiting import until

Values = dict[str, float]


def values(text: str | None = None) -> Values:
    """The values by name and labels, as they are written."""
    text = as_text(lock_state(rows=False)) if text is None else text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def in_state(found: Values) -> dict[str, float]:
    """How many locks are in each state; those that are 0 are left out."""
    counts = {
        state: found[f'tasklock_locks{{store="default",state="{state}"}}'] for state in STATES
    }
    return {state: count for state, count in counts.items() if count}


def metrics(*arguments: str) -> str:
    out = io.StringIO()
    call_command("locks", "metrics", *arguments, stdout=out)
    return out.getvalue()


def test_each_lock_is_in_one_state(use_redis: UseRedis) -> None:
    use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
    for name in ("a", "b"):
        taken(name)
    taken("handed").detach()
    assert locks.hold("operator", 600, by="alice") is not None
    with lock("cooled", hold_at_least=600):
        pass
    in_child(lambda: taken("orphan").name)
    assert in_state(values()) == {
        "held": 2, "detached": 1, "operator": 1, "cooling": 1, "orphaned": 1,
    }  # fmt: skip


def test_the_lock_of_the_next_holder_is_no_orphan(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last owner has released it, and ended, since the list was read."""
    use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
    in_child(lambda: taken("video:1").name)
    store = stores["default"]
    found = store.list()
    assert locks.clear("video:1")
    taken("video:1")
    monkeypatch.setattr(store, "list", lambda: found)
    assert in_state(values()) == {"held": 1}


def test_waiters_are_counted_those_for_permits_too(use_redis: UseRedis) -> None:
    use_redis()
    held = [taken("video:1"), taken("export", slots=2), taken("export", slots=2)]

    def wait_and_release(name: str, slots: int) -> bool:
        won = locks.acquire(name, ttl=60, wait=60, slots=slots)
        return won is not None and won.release()

    waiters = [
        Meanwhile(partial(wait_and_release, name, slots))
        for name, slots in (("video:1", 1), ("export", 2))
        for _ in range(2)
    ]

    def waiting() -> float:
        return values()['tasklock_waiters{store="default"}']

    def longest_wait() -> float:
        return values()['tasklock_longest_wait_seconds{store="default"}']

    until(lambda: waiting() == 4, "four waiters")
    queued = [*locks.waiters("video:1"), *locks.waiters("export")]
    moments = [owner.waiting_since for owner in queued if owner.waiting_since is not None]
    assert len(moments) == 4
    # Of those that came at the same moment, the one that was first to ask may be the second.
    least = age(max(moments))
    assert least <= longest_wait() <= age(min(moments))
    assert in_state(values()) == {"held": 3}
    for lease in held:
        lease.release()
    assert all(waiter.result() for waiter in waiters)
    assert waiting() == 0
    assert not any("longest_wait" in name for name in values())


def test_every_store_that_lists_has_gauges_and_every_other_none(store: BaseStore) -> None:
    taken("video:1")
    found = values()
    if not store.supports_listing:
        assert found == {}
        return
    assert in_state(found) == {"held": 1}
    assert found['tasklock_store_up{store="default"}'] == 1
    assert found['tasklock_oldest_lock_age_seconds{store="default"}'] >= 0


def test_a_store_without_locks_has_no_oldest_one(use_redis: UseRedis) -> None:
    use_redis()
    found = values()
    assert in_state(found) == {}
    assert found['tasklock_waiters{store="default"}'] == 0
    assert not any("oldest" in name for name in found)


def test_of_a_store_that_does_not_answer_only_that_is_said(use_redis: UseRedis) -> None:
    use_redis()
    with outage():
        assert values() == {'tasklock_store_up{store="default"}': 0}


def test_the_oldest_lock_is_the_one_that_was_taken_first(use_redis: UseRedis) -> None:
    use_redis()
    record = owner_record() | {"ttl": LONG, "renew": False}
    stores["default"].acquire("old", new_token(), LONG, record)
    taken("new")
    infos = locks.list()
    first = min(info.acquired_at for info in infos if info.acquired_at is not None)
    assert first == next(info.acquired_at for info in infos if info.name == "old")
    age = values()['tasklock_oldest_lock_age_seconds{store="default"}']
    assert 0 <= age < LONG


@pytest.mark.django_db(transaction=True)
def test_lost_rows_are_counted_by_their_model(
    use_redis: UseRedis, redis_server: RedisServer
) -> None:
    use_redis()
    guard = StatusGuard(
        Job, pk="job", source=["queued"], to="processing", done="done", failed="failed"
    )
    for status in ("processing", "processing", "queued"):
        Job.objects.create(status=status)
    with mailroom(redis_server.url) as room:
        room.task(guard=guard)
        held = taken(f"job:{Job.objects.create(status='processing').pk}")
        assert values(metrics())['tasklock_lost_rows{rows="app.Job"}'] == 2
        assert held.release()
        assert values(metrics())['tasklock_lost_rows{rows="app.Job"}'] == 3
        assert "tasklock_lost_rows" not in metrics("--no-rows")


LOST = 'tasklock_lost_rows{rows="app.Job"}'


@pytest.mark.django_db(transaction=True)
def test_a_part_of_the_lost_rows_is_not_called_all(
    use_caches: UseCaches, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two tasks for rows of one model, with a store each, and a lost row of each
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    use_caches({}, {"default": memory, "other": memory})
    with mailroom(redis_server.url) as room:
        for store, to in (("default", "checking"), ("other", "sending")):
            guard = StatusGuard(Job, pk="job", source="queued", to=to, done="done")
            room.task(guard=guard, lock_store=store)
            Job.objects.create(status=to)
        assert values(metrics())[LOST] == 2

        # When one of the stores does not answer, I expect no number
        silent(monkeypatch, "get_many")
        assert LOST not in values(metrics())


@pytest.mark.django_db(transaction=True)
def test_rows_whose_locks_names_are_not_known_are_not_called_0(
    use_redis: UseRedis, redis_server: RedisServer
) -> None:
    use_redis()
    with mailroom(redis_server.url) as room:
        guard = StatusGuard(Job, pk="job", source="queued", to="processing", done="done")
        room.task(guard=guard, lock_name="{job}:{other}")
        assert values(metrics())[LOST] == 0
        Job.objects.create(status="processing")
        assert LOST not in values(metrics())

        # One that is known to be lost is said
        known = StatusGuard(Job, pk="job", source="queued", to="checking", done="done")
        room.task(guard=known)
        Job.objects.create(status="checking")
        assert values(metrics())[LOST] == 1


def test_the_command_prints_what_prometheus_reads(use_redis: UseRedis) -> None:
    use_redis()
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        needs.missing("prometheus_client is not installed")
    taken("video:1")
    families = {one.name: one for one in text_string_to_metric_families(metrics("--no-rows"))}
    assert {family.type for family in families.values()} == {"gauge"}
    assert all(family.documentation for family in families.values())
    held = [one for one in families["tasklock_locks"].samples if one.labels["state"] == "held"]
    assert [one.value for one in held] == [1]


def test_odd_characters_in_a_label_are_escaped() -> None:
    gauge = Gauge("tasklock_locks", "Locks.")
    gauge.add(1, store='a"b\\c\nd')
    assert as_text([gauge]).splitlines()[-1] == r'tasklock_locks{store="a\"b\\c\nd"} 1'


def test_the_file_is_replaced_in_one_step_and_readable_by_others(
    use_redis: UseRedis, tmp_path: Path
) -> None:
    use_redis()
    file = tmp_path / "locks.prom"
    file.write_text("old")
    before = file.stat().st_ino
    assert metrics("--no-rows", "--output", str(file)) == ""
    assert values(file.read_text())['tasklock_store_up{store="default"}'] == 1
    assert file.stat().st_ino != before
    assert file.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_file_is_written_to(use_redis: UseRedis, tmp_path: Path) -> None:
    """As ``/dev/stdout``, which root could replace."""
    use_redis()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = Meanwhile(pipe.read_text)
    assert metrics("--no-rows", "--output", str(pipe)) == ""
    assert "tasklock_store_up" in reader.result()
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written_is_said_and_leaves_nothing(
    use_redis: UseRedis, tmp_path: Path
) -> None:
    use_redis()
    (tmp_path / "locks.prom").mkdir()
    for target in (tmp_path / "missing/locks.prom", tmp_path / "locks.prom"):
        with pytest.raises(CommandError, match=r"could not be written"):
            metrics("--no-rows", "--output", str(target))
    assert [path.name for path in tmp_path.iterdir()] == ["locks.prom"]


def test_one_store_may_be_asked_for(use_redis: UseRedis) -> None:
    use_redis()
    assert re.search(r'store="default"', metrics("--store", "default", "--no-rows"))
    with pytest.raises(CommandError, match="nowhere"):
        metrics("--store", "nowhere")


def test_counters_that_nobody_keeps_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_tasklock.cli.state_metrics.sources", {})
    with pytest.raises(CommandError, match=r"contrib\.prometheus"):
        metrics("--counters")
