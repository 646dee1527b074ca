"""Reservations of the queue (``unique_while``): found and cleared."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_tasklock.operators.clearing import Outcome
from django_tasklock.operators.reservations import clear_job, key_of, queued_jobs
from django_tasklock.stores import stores
from django_tasklock.stores.redis.store import RedisStore
from tests.conftest import UseRedis
from tests.steps import server


@pytest.fixture
def store(use_redis: UseRedis) -> RedisStore:
    use_redis()
    store = stores["default"]
    assert isinstance(store, RedisStore)
    return store


def reserve(store: Any, name: str, task: str = "videos.tasks.process", ttl: float = 600) -> str:
    task_id = f"id-of-{name}"
    assert store.reserve(key_of(task, name), task_id, ttl) is None
    return task_id


def test_jobs_are_found_by_name_and_task(store: RedisStore) -> None:
    reserve(store, "video:1")
    reserve(store, "video:2", ttl=300)
    reserve(store, "report", task="a task of reports", ttl=900)
    assert [job.name for job in queued_jobs(store)] == ["video:2", "video:1", "report"]
    assert [job.name for job in queued_jobs(store, limit=1)] == ["video:2"]
    assert [job.name for job in queued_jobs(store, "video:")] == ["video:2", "video:1"]
    (job,) = queued_jobs(store, task="a*reports")
    assert (job.task, job.name, job.task_id) == ("a task of reports", "report", "id-of-report")
    assert job.ttl is not None
    assert 890 < job.ttl <= 900


def test_what_strangers_wrote_is_no_job(store: RedisStore) -> None:
    reserve(store, "video:1")
    soon = 9e15
    strange: list[Any] = [
        b"\xff\xfe", b" queued \xff", " queued", " queued ", " queued x", " queued  y",
        " queued task na\x1bme", f" queued {'x' * 10**6} {'y' * 10**6}", " queued task theirs",
    ]  # fmt: skip
    client = server()
    client.zadd(store.keys.listed, dict.fromkeys(strange, soon))
    client.set(store.key(" queued task theirs"), b"\xff\x1b[2J")
    assert [job.name for job in queued_jobs(store)] == ["video:1"]
    assert clear_job(queued_jobs(store)[0], by="a test") is Outcome.CLEARED


def test_only_the_reservation_that_was_seen_is_cleared(
    store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    reserve(store, "video:1")
    (seen,) = queued_jobs(store)
    key = key_of(seen.task, seen.name)
    assert store.reserve(key, "the next", 60, over=seen.task_id) is None
    assert clear_job(seen, by="a test") is Outcome.CHANGED_HANDS
    (now,) = queued_jobs(store)
    with caplog.at_level(logging.WARNING, "django_tasklock"):
        assert clear_job(now, by="a\ntest") is Outcome.CLEARED
    assert clear_job(now, by="a test") is Outcome.NOT_LOCKED
    (record,) = caplog.records
    assert record.getMessage() == (
        "the reservation of the job video:1 in store default for the task "
        "videos.tasks.process[the next] was cleared by a\\ntest"
    )
    assert record.lock_task_id == "the next"  # type: ignore[attr-defined]
    assert queued_jobs(store) == []
