"""Reservations of the queue (``unique_while``): found and cleared."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_tasklock.stores import stores
from tests.inside import operators, reserved_key
from tests.steps import server

clear_job, queued_jobs = operators("reservations").clear_job, operators("reservations").queued_jobs


@pytest.fixture
def store(on_redis: None) -> Any:
    return stores["default"]


def reserve(store: Any, name: str, task: str = "videos.tasks.process", ttl: float = 600) -> None:
    assert store.reserve(reserved_key(task, name), f"id-of-{name}", ttl) is None


def test_jobs_are_found_by_name_and_task(store: Any) -> None:
    # Given jobs that are reserved for messages in the queue
    reserve(store, "video:1")
    reserve(store, "video:2", ttl=300)
    reserve(store, "report", task="a task of reports", ttl=900)

    # I expect them to be listed, the soonest to end first
    assert [job.name for job in queued_jobs(store)] == ["video:2", "video:1", "report"]
    assert [job.name for job in queued_jobs(store, limit=1)] == ["video:2"]
    assert [job.name for job in queued_jobs(store, "video:")] == ["video:2", "video:1"]

    # And to be told of each for which message it is, and how long
    (job,) = queued_jobs(store, task="a*reports")
    assert (job.task, job.name, job.task_id) == ("a task of reports", "report", "id-of-report")
    assert 890 < job.ttl <= 900


def test_what_strangers_wrote_is_no_job(store: Any) -> None:
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
    assert clear_job(queued_jobs(store)[0], by="a test").value == "cleared"


def test_only_the_reservation_that_was_seen_is_cleared(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reserve(store, "video:1")
    (seen,) = queued_jobs(store)
    key = reserved_key(seen.task, seen.name)
    assert store.reserve(key, "the next", 60, over=seen.task_id) is None
    assert clear_job(seen, by="a test").value == "changed hands"
    (now,) = queued_jobs(store)
    with caplog.at_level(logging.WARNING, "django_tasklock"):
        assert clear_job(now, by="a\ntest").value == "cleared"
    assert clear_job(now, by="a test").value == "not locked"
    (record,) = caplog.records
    assert record.getMessage() == (
        "the reservation of the job video:1 in store default for the task "
        "videos.tasks.process[the next] was cleared by a\\ntest"
    )
    assert vars(record)["lock_task_id"] == "the next"
    assert queued_jobs(store) == []
