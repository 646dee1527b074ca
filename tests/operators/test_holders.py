"""Who holds a lock, and what a clear of it means: what the command, the page and the log say."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LockInfo, lock, locks, signals
from tests.conftest import UseRedis
from tests.inside import asked, operators, owner_record
from tests.steps import LONG, held_by, holder, orphan, taken, waiter

meaning, sentence = operators("holders").meaning, operators("holders").sentence
HOUR = 3600.0


def on_another_host() -> None:
    held_by(owner_record("videos.process") | {"host": "worker-9", "boot": "another"}, "video:1")


def overdue() -> None:
    """A host that has died: its lease is renewed every two hours, and nobody has."""
    owner = owner_record("videos.process") | {"host": "worker-9", "boot": "another"}
    held_by(owner | {"ttl": 6 * HOUR, "renew": True}, "video:1", ttl=3 * HOUR)


def by_anna() -> None:
    locks.hold("video:1", LONG, "anna", "a migration")


def by_other_code() -> None:
    cache.add("lock:video:1", "locked", None)


def cooling() -> None:
    with lock("video:1", hold_at_least=LONG):
        pass


HOLDERS: dict[str, tuple[Callable[[], Any], bool, str]] = {
    "alive": (lambda: taken("video:1"), False, ", ends in "),
    "gone": (lambda: orphan("video:1"), True, ", its process is gone, ends in "),
    "overdue": (overdue, False, ", not renewed for 3h00m (due every 2h00m), ends in "),
    "unknown": (on_another_host, False, "Held by worker-9:"),
    "cooling": (cooling, True, f":{os.getpid()}, ends in "),  # Not since when: it is over.
    "detached": (lambda: taken("video:1").detach(LONG), False, "(no run has adopted "),
    "operator": (by_anna, True, "Held by operator anna, reason: a migration, for 0."),
    "other code": (by_other_code, False, "Held by other code, and never expires."),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_each_holder_has_its_words(on_redis: None, kind: str) -> None:
    take, safe, words = HOLDERS[kind]
    # Given a lock that is held in this way
    kept = take()
    info = holder("video:1")

    # I expect the command and the page to say by whom
    assert operators("holders").holder_of(info).value == kind
    assert words in sentence(info)

    # And whether two runs may overlap after a clear
    is_safe, text = meaning(info)
    assert is_safe is safe
    assert ("may overlap" in text) is not safe
    del kept


@pytest.mark.parametrize(("share", "kind"), [(0.65, "alive"), (0.59, "overdue")])
def test_a_lease_is_overdue_soon_after_two_thirds_of_its_ttl_are_left(
    on_redis: None, share: float, kind: str
) -> None:
    """Not at once: the renewal is under way then."""
    held_by(owner_record() | {"ttl": HOUR, "renew": True}, "video:1", ttl=share * HOUR)
    assert operators("holders").holder_of(holder("video:1")).value == kind


def adopted() -> Lease | None:
    return locks.adopt(taken("video:1", max_hold=LONG).detach(LONG), renew=True)


RUNNING_DOWN: dict[str, Callable[[], Any]] = {
    "not renewed": lambda: taken("video:1", renew=False),
    "with a max_hold": lambda: taken("video:1", renew=True, max_hold=LONG),
    "adopted with a max_hold": adopted,
}


@pytest.mark.parametrize("how", RUNNING_DOWN)
def test_a_lease_that_nobody_has_to_renew_now_is_not_overdue(on_redis: None, how: str) -> None:
    """One that is not renewed runs down; and so does one with a max_hold, at its end."""
    lease = RUNNING_DOWN[how]()
    at_its_end = replace(holder("video:1"), ttl=1.0)
    assert operators("holders").holder_of(at_its_end).value == "alive"
    del lease


def test_who_waits_is_said_with_it(on_redis: None) -> None:
    lease = taken("video:1")
    first = waiter("video:1", 1, ttl=LONG)
    assert "; 1 waits, for 0." in sentence(holder("video:1"))
    lease.release()
    assert first.result() is not None


def test_without_takeover_the_subprocesses_of_a_dead_process_may_still_work(
    use_redis: UseRedis,
) -> None:
    use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
    orphan("video:1")
    safe, text = meaning(holder("video:1"))
    assert not safe
    assert "its subprocesses may still work (TAKEOVER is off)" in text


def test_permits_are_found_on_a_store_that_cannot_list(on_locmem: None) -> None:
    permits = [locks.acquire("api", ttl=LONG, slots=3) for _ in range(2)]
    assert [info.slot for info in operators("held").held_permits(locks, "api")] == [1, 2]
    del permits


# ------------------------------------------------------------------------------ log lines

Log = pytest.LogCaptureFixture


@pytest.fixture
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
    lease = asked("video:1", task="videos.transcode", task_id="id-1")
    assert isinstance(lease, Lease)
    owner = f"{lease.owner}"
    assert "videos.transcode[id-1]" in owner
    assert isinstance(asked("video:1", task="videos.transcode", task_id="id-2"), LockInfo)
    locks.clear("video:1", lease.token, by="alice")
    assert not lease.extend()
    assert not lease.release()

    refused, cleared, lost = log.records
    assert {record.name for record in log.records} == {"django_tasklock"}
    where = "lock video:1 in store default"
    assert refused.levelno == logging.INFO
    assert refused.getMessage().startswith(f"{where} is held by {owner}")
    assert "videos.transcode[id-2]" in refused.getMessage()
    assert vars(refused)["lock_name"] == "video:1"
    assert vars(refused)["lock_task_id"] == "id-2"
    assert cleared.levelno == logging.WARNING
    assert cleared.getMessage() == f"{where}, held by {owner}, was cleared by alice"
    assert lost.levelno == logging.ERROR
    assert lost.getMessage().startswith(f"{where} is lost by its holder {owner}: ")


def test_what_others_wrote_forges_no_line(log: Log) -> None:
    asked("video:1", task="x\nERROR forged\x1b[2J", task_id="\u202e")
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
