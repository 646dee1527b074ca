"""One log line for each skip, loss and clear, with name, owner and task id."""

from __future__ import annotations

import logging
import os

import pytest

from django_tasklock import locks, signals
from django_tasklock.operators.logs import connect
from tests.admin.conftest import taken
from tests.conftest import UseRedis
from tests.inside import asked


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis, caplog: pytest.LogCaptureFixture) -> None:
    use_redis()
    caplog.set_level(logging.DEBUG, logger="django_tasklock")


def test_ordinary_life_logs_nothing_and_nothing_listens_on_the_hot_path(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = taken("video:1")
    assert lease.extend()
    assert lease.release()
    assert caplog.records == []
    assert not signals.lock_acquired.has_listeners()
    assert not signals.lock_released.has_listeners()


def test_contention_is_one_line_at_info_however_often_it_is_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connect()
    holder = taken("video:1", task="videos.transcode", task_id="id-1")

    asked("video:1", ttl=600, task="videos.transcode", task_id="id-2")

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("django_tasklock", logging.INFO)
    line = record.getMessage()
    assert f"lock video:1 in store default is held by {holder.owner}" in line
    assert "videos.transcode[id-1]" in line
    assert "videos.transcode[id-2]" in line
    assert getattr(record, "lock_name", None) == "video:1"
    assert getattr(record, "lock_task_id", None) == "id-2"


def test_clear_is_one_line_at_warning_and_loss_is_one_at_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = taken("video:1", task="videos.transcode", task_id="id-1")
    locks.clear("video:1", lease.token, by="alice")
    assert not lease.extend()
    assert not lease.release()

    cleared, lost = caplog.records
    assert (cleared.levelno, lost.levelno) == (logging.WARNING, logging.ERROR)
    assert cleared.getMessage() == (
        f"lock video:1 in store default, held by {lease.owner}, was cleared by alice"
    )
    assert (
        f"lock video:1 in store default is lost by its holder {lease.owner}: " in lost.getMessage()
    )
    assert "videos.transcode[id-1]" in str(lease.owner)


def test_what_others_wrote_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    taken("video:1", task="x\nERROR forged\x1b[2J", task_id="\u202e")
    locks.acquire("video:1")
    locks.clear("video:1", by="a\nb")
    assert len(caplog.records) == 2
    assert all(record.getMessage().isprintable() for record in caplog.records)
    # Nor do the fields, which a formatter may write as they are.
    for record in caplog.records:
        fields = [vars(record)[field] for field in ("lock_name", "lock_store", "lock_task_id")]
        owner = vars(record)["lock_owner"]
        assert all(str(value).isprintable() for value in (*fields, *owner.values()) if value)
    contended, cleared = caplog.records
    assert vars(cleared)["lock_owner"]["task"] == r"x\nERROR forged\x1b[2J"
    assert vars(cleared)["lock_task_id"] == r"\u202e"
    assert vars(contended)["lock_owner"]["pid"] == os.getpid()  # A number is still one.
