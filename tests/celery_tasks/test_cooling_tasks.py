"""Tasks whose lock cools: which outcome of a run cools it, and whom it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from django_tasklock import InvalidLockConfig, Lease, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.celery import LockedTask
from django_tasklock.celery.request import LockedRequest
from django_tasklock.celery.task_checks import check_tasks
from django_tasklock.celery.unique import Reservation
from django_tasklock.guards import StatusGuard
from django_tasklock.stores import stores
from tests.app.models import Job
from tests.celery_tasks.test_locked_task import MakeTask, task
from tests.conftest import UseCaches, UseRedis
from tests.mailroom import Mailroom, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, holder
from tests.waiting import until

__all__ = ["task"]
LATER = 300.0
"""seconds after which no test looks"""
ALL = {
    "lock_hold_at_least": LATER, "lock_cooldown": LATER, "lock_cooldown_after_error": LATER,
}  # fmt: skip


@pytest.fixture
def rows(transactional_db: None) -> StatusGuard:
    return StatusGuard(
        "app.Job", pk="job", source="queued", to="working", done="done", failed="failed"
    )


def cooling(name: str = "job:1") -> bool:
    info = locks.get(name)
    return info is not None and info.cooling


def left(name: str = "job:1") -> float:
    info = holder(name)
    assert info.cooling
    assert info.ttl is not None
    return info.ttl


def raising(error: BaseException) -> Any:
    def work(self: Any, job: Any) -> None:
        raise error

    return work


# ------------------------------------------------------------------------------ who is refused


@pytest.mark.parametrize("late", [True, False])
def test_the_second_call_is_skipped_while_the_lock_cools(room: Mailroom, late: bool) -> None:
    made = room.task(acks_late=late, lock_cooldown=LATER)
    first = made.delay(1)
    made.delay(1)
    assert room.work_off() == [
        ("SUCCESS", "done:1"),
        (
            "SUCCESS",
            {"status": "skipped", "reason": "cooling_down", "lock": "job:1", "holder": first.id},
        ),
    ]
    assert (holder("job:1").owner.task, cooling()) == (made.name, True)
    locks.clear("job:1")
    assert made(1) == "done:1"
    assert cooling()
    assert made(1)["reason"] == "cooling_down"


def test_each_outcome_has_its_own_time(room: Mailroom) -> None:
    room.task(lock_cooldown=LATER, lock_cooldown_after_error=3 * LATER).delay(1)
    room.work_off()
    assert LATER - LONG < left() <= LATER
    locks.clear("job:1")
    failing = raising(KeyError("x"))
    room.task(failing, lock_cooldown=LATER, lock_cooldown_after_error=3 * LATER).delay(1)
    assert room.work_off()[0][0] == "FAILURE"
    assert 3 * LATER - LONG < left() <= 3 * LATER
    locks.clear("job:1")
    room.task(failing, lock_cooldown=LATER).delay(1)
    assert room.work_off()[0][0] == "FAILURE"
    assert not locks.is_locked("job:1")
    room.task(failing, lock_hold_at_least=LATER).delay(1)
    assert room.work_off()[0][0] == "FAILURE"
    assert LATER - LONG < left() <= LATER


def test_raise_says_that_it_cools(room: Mailroom) -> None:
    made = room.task(lock_cooldown=LATER, on_conflict="raise")
    assert made(1) == "done:1"
    made.delay(1)
    state, error = room.work_off()[0]
    assert (state, type(error)) == ("FAILURE", LockNotAcquired)
    assert "cooling down for" in str(error)


@pytest.mark.parametrize("on_conflict", ["retry", "coalesce"])
def test_retry_and_coalesce_wait_until_it_is_cool(room: Mailroom, on_conflict: str) -> None:
    made = room.task(lock_cooldown=LATER, on_conflict=on_conflict)
    assert made(1) == "done:1"
    made.delay(1)
    for _ in range(3):
        assert room.deliver(room.take())[0] == "IGNORED"
        assert len(room.waiting()) == 1
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_a_worker_may_wait_until_it_is_cool(room: Mailroom) -> None:
    made = room.task(lock_hold_at_least=1.5, lock_wait=LONG)
    assert made(1) == "done:1"
    assert cooling()
    made.delay(1)
    assert room.work_off() == [("SUCCESS", "done:1")]


# ------------------------------------------------------------------------------ which runs cool


@pytest.mark.parametrize("late", [True, False])
def test_a_retry_does_not_meet_its_own_cooling(room: Mailroom, late: bool) -> None:
    runs: list[int] = []

    def work(self: Any, job: Any) -> str:
        runs.append(self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return "charged"

    room.task(work, acks_late=late, **ALL).delay(1)
    assert room.deliver(room.take())[0] == "RETRY"
    assert not locks.is_locked("job:1")
    assert room.deliver(room.take())[0] == "RETRY"
    assert room.work_off() == [("SUCCESS", "charged")]
    assert runs == [0, 1, 2]
    assert cooling()


def test_autoretry_cools_after_the_last_error(room: Mailroom) -> None:
    options = {"autoretry_for": (KeyError,), "max_retries": 1, "retry_backoff": False}
    room.task(raising(KeyError("x")), default_retry_delay=0, **options, **ALL).delay(1)
    assert room.deliver(room.take())[0] == "RETRY"
    assert not locks.is_locked("job:1")
    assert room.deliver(room.take())[0] == "FAILURE"
    assert cooling()


@pytest.mark.parametrize(
    "error",
    [Ignore(), Reject(requeue=True), SystemExit(1), KeyboardInterrupt()],
    ids=["Ignore", "Reject with requeue", "SystemExit", "KeyboardInterrupt"],
)
def test_a_run_that_goes_on_elsewhere_does_not_cool(room: Mailroom, error: BaseException) -> None:
    room.task(raising(error), acks_late=True, **ALL).delay(1)
    message = room.take()
    try:
        room.deliver(message)
    except (SystemExit, KeyboardInterrupt):
        pass
    assert not locks.is_locked("job:1")


def test_a_rejected_message_that_does_not_come_back_has_failed(room: Mailroom) -> None:
    room.task(raising(Reject(requeue=False)), acks_late=True, **ALL).delay(1)
    room.deliver(room.take())
    assert cooling()


def test_a_task_that_is_replaced_does_not_cool(room: Mailroom) -> None:
    """The one that replaces it may need the same lock."""
    other = room.task(**ALL)

    def work(self: Any, job: Any) -> Any:
        return self.replace(other.s(job))

    room.task(work, acks_late=True, **ALL).delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert not locks.is_locked("job:1")
    assert room.work_off() == [("SUCCESS", "done:1")]
    assert cooling()


def test_a_lost_lease_does_not_cool(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        locks.clear(self.lease.name)
        assert not self.lease.extend()
        self.lease.assert_held()

    room.task(work, acks_late=True, **ALL).delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert not locks.is_locked("job:1")


def test_a_row_without_work_does_not_cool(room: Mailroom, rows: StatusGuard) -> None:
    """The next message may find work there."""
    row = Job.objects.create(status="done")
    made = room.task(guard=rows, **ALL)
    made.delay(row.pk)
    assert room.work_off()[0][1]["reason"] == "invalid_state"
    assert not locks.is_locked(f"job:{row.pk}")
    Job.objects.update(status="queued")
    made.delay(row.pk)
    assert room.work_off() == [("SUCCESS", f"done:{row.pk}")]
    assert cooling(f"job:{row.pk}")


def test_a_message_that_has_died_too_often_does_not_cool(room: Mailroom) -> None:
    made = room.task(acks_late=True, lock_max_attempts=1, **ALL)
    made.delay(1)
    message = room.take()
    # A worker that is killed in its body.
    made.push_request(id=message.id, headers=message.headers, is_eager=False, called_directly=False)
    from django_tasklock.celery.delivery import Delivery

    note = Delivery(made).note_of_start()
    made.pop_request()
    assert note is not None
    stores["default"].set_note(note)
    assert room.deliver(message, redelivered=True)[0] == "FAILURE"
    assert not locks.is_locked("job:1")


# ------------------------------------------------------------------------------ redeliveries


def test_a_late_redelivery_is_dropped_by_its_note(room: Mailroom) -> None:
    """The note is written with a release that cools, too."""
    runs: list[int] = []
    room.task(lambda self, job: runs.append(job), acks_late=True, ignore_result=True, **ALL).delay(
        1
    )
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    assert cooling()
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.waiting() == []
    assert runs == [1]
    assert cooling()


def test_a_redelivery_waits_until_the_lock_of_another_message_is_cool(room: Mailroom) -> None:
    """Its own run may have died, so it is what is left of its job."""
    made = room.task(acks_late=True, lock_cooldown=LATER)
    made.delay(1)
    message = room.take()
    assert made(1) == "done:1"
    for _ in range(2):
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        (message,) = room.waiting()
        room.take()
    locks.clear("job:1")
    assert room.deliver(message) == ("SUCCESS", "done:1")


@pytest.mark.parametrize("by", ["operator", "other code"])
def test_a_redelivery_waits_for_a_holder_that_is_no_run(room: Mailroom, by: str) -> None:
    """Such a holder does not do the job, which may have begun."""
    made = room.task(acks_late=True)
    made.delay(1)
    message = room.take()
    if by == "operator":
        assert locks.hold("job:1", LONG, "alice", "a migration")
    else:
        assert locks.acquire("job:1", ttl=LONG)
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_a_run_beside_the_holder_leaves_nothing_that_cools(room: Mailroom) -> None:
    made = room.task(acks_late=True, on_conflict="run", lock_cooldown=LATER)
    with lock("job:1", ttl=LONG):
        made.delay(1)
        assert room.work_off() == [("SUCCESS", "done:1")]
        assert [info.name for info in locks.list()] == ["job:1"]


def test_a_retry_waits_until_the_lock_of_another_message_is_cool(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> str:
        if self.request.id == first.id and not self.request.retries:
            raise self.retry(countdown=0)
        return str(self.request.id)

    made = room.task(work, acks_late=True, lock_cooldown=LATER)
    first = made.delay(1)
    assert room.deliver(room.take())[0] == "RETRY"
    second = made.delay(1)
    assert room.deliver(room.take(second.id)) == ("SUCCESS", second.id)
    assert room.deliver(room.take(first.id))[0] == "IGNORED"
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", first.id)]


def test_a_redelivery_that_meets_its_own_cooling_lock_is_not_skipped(room: Mailroom) -> None:
    """Its run had failed, and its worker died before it could acknowledge the message."""
    made = room.task(raising(KeyError("x")), acks_late=True, **ALL)
    made.delay(1)
    message = room.take()
    assert room.deliver(message)[0] == "FAILURE"
    assert cooling()
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.ids() == [message.id]


def test_a_child_that_dies_after_its_run_leaves_the_lock_cooling(room: Mailroom) -> None:
    """The main process clears the lease of a dead child, unless the child has released it."""
    made = room.task(acks_late=True, **ALL)
    made.delay(1)
    message = room.take()
    token = "x" * 22
    message.headers["tasklock"] = {**message.ours, "token": token}
    assert room.deliver(message)[0] == "SUCCESS"
    assert holder("job:1").token == token
    request: Any = LockedRequest.__new__(LockedRequest)
    request._task, request._token, request._args, request._kwargs = made, token, [1], {}
    request._already_revoked, request._ended, request._handle = False, None, None
    request.id = message.id
    request._clear_lease()
    assert cooling()
    locks.clear("job:1")
    lease = locks.try_acquire("job:1", ttl=LONG, task_id=message.id)
    assert isinstance(lease, Lease)
    request._token = lease.token
    request._clear_lease()
    assert not locks.is_locked("job:1")


# ------------------------------------------------------------------------------ in the queue


@pytest.mark.parametrize("unique", ["queued", "unfinished"])
def test_a_call_is_no_duplicate_of_a_run_that_has_ended(room: Mailroom, unique: str) -> None:
    """No run would come after it. It is sent, and skipped or run when it is delivered."""
    made = room.task(acks_late=True, unique_while=unique, lock_cooldown=LATER)
    made.delay(1)
    assert room.work_off() == [("SUCCESS", "done:1")]
    assert cooling()
    sent = made.delay(1)
    assert room.ids() == [sent.id]
    assert Reservation(made, "job:1", sent.id).peek() == sent.id
    assert room.work_off()[0][1]["reason"] == "cooling_down"
    assert Reservation(made, "job:1", sent.id).peek() is None


# ------------------------------------------------------------------------------ trouble


def test_an_outage_at_the_release_ends_in_cooling(
    use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    use_redis(cut_proxy.url, SOCKET_TIMEOUT=10.0, SOCKET_CONNECT_TIMEOUT=10.0)

    def work(self: Any, job: Any) -> str:
        cut_proxy.refuse()
        cut_proxy.cut()
        return "charged"

    with mailroom(redis_server.url) as room:
        made = room.task(work, acks_late=True, lock_ttl=LONG, lock_cooldown=LATER)
        made.delay(1)
        message = room.take()
        assert room.deliver(message) == ("SUCCESS", "charged")
        with pytest.raises(StoreUnavailable):
            locks.get("job:1")
        cut_proxy.accept()
        until(cooling, "the cooling")
        assert made(1)["reason"] == "cooling_down"


@pytest.mark.parametrize(
    "option", ["lock_hold_at_least", "lock_cooldown", "lock_cooldown_after_error"]
)
@pytest.mark.parametrize("value", [True, "1", None, -1, float("nan"), float("inf")])
def test_a_wrong_option_is_an_error_when_the_task_is_made(
    task: MakeTask, option: str, value: Any
) -> None:
    def charge(self: Any, video: int) -> None: ...

    with pytest.raises(InvalidLockConfig, match=option):
        task(charge, **{option: value})


def test_a_store_that_cannot_do_it(task: MakeTask, use_caches: UseCaches) -> None:
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": "tests.five_methods.FiveMethodStore"}},
    )

    def charge(self: Any, video: int) -> None:
        raise AssertionError

    made = task(charge, lock_cooldown=1)
    assert isinstance(made, LockedTask)
    assert [m.msg for m in check_tasks() if m.id == "django_tasklock.E006" and made.name in m.msg]
    with pytest.raises(InvalidLockConfig, match="rewrite"):
        made(7)
    assert not locks.is_locked("video:7")
