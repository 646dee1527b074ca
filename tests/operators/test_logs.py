"""One log line for each skip, loss and clear, with name, owner and task id."""

from __future__ import annotations

import logging
import os

import pytest

from django_tasklock import LockInfo, locks, signals
from tests.admin.conftest import taken
from tests.inside import asked, operators

Log = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def log(on_redis: None, caplog: Log) -> Log:
    """All that is logged."""
    caplog.set_level(logging.DEBUG, logger="django_tasklock")
    return caplog


def test_ordinary_life_logs_nothing_and_nothing_listens_on_the_hot_path(log: Log) -> None:
    lease = taken("video:1")
    assert lease.extend()
    assert lease.release()
    assert log.records == []
    assert not signals.lock_acquired.has_listeners()
    assert not signals.lock_released.has_listeners()


def test_a_refusal_a_clear_and_a_loss_are_one_line_each_however_often_it_is_connected(
    log: Log,
) -> None:
    operators("logs").connect()
    lease = taken("video:1", task="videos.transcode", task_id="id-1")
    holder = f"{lease.owner}"
    assert "videos.transcode[id-1]" in holder
    assert isinstance(asked("video:1", task="videos.transcode", task_id="id-2"), LockInfo)
    locks.clear("video:1", lease.token, by="alice")
    assert not lease.extend()
    assert not lease.release()

    refused, cleared, lost = log.records
    assert {record.name for record in log.records} == {"django_tasklock"}
    lock = "lock video:1 in store default"
    assert refused.levelno == logging.INFO
    assert refused.getMessage().startswith(f"{lock} is held by {holder}")
    assert "videos.transcode[id-2]" in refused.getMessage()
    assert vars(refused)["lock_name"] == "video:1"
    assert vars(refused)["lock_task_id"] == "id-2"
    assert cleared.levelno == logging.WARNING
    assert cleared.getMessage() == f"{lock}, held by {holder}, was cleared by alice"
    assert lost.levelno == logging.ERROR
    assert lost.getMessage().startswith(f"{lock} is lost by its holder {holder}: ")


def test_what_others_wrote_forges_no_line(log: Log) -> None:
    taken("video:1", task="x\nERROR forged\x1b[2J", task_id="\u202e")
    locks.acquire("video:1")
    locks.clear("video:1", by="a\nb")
    assert len(log.records) == 2
    # Nor do the fields, which a formatter may write as they are.
    for record in log.records:
        fields = [vars(record)[field] for field in ("lock_name", "lock_store", "lock_task_id")]
        said = [record.getMessage(), *fields, *vars(record)["lock_owner"].values()]
        assert all(str(value).isprintable() for value in said if value)
    contended, cleared = log.records
    assert vars(cleared)["lock_owner"]["task"] == r"x\nERROR forged\x1b[2J"
    assert vars(cleared)["lock_task_id"] == r"\u202e"
    assert vars(contended)["lock_owner"]["pid"] == os.getpid()  # A number is still one.
