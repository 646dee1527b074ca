"""Tasks whose lock cools: which outcome of a run cools it, and whom it refuses."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from django_tasklock import InvalidLockConfig, locks
from django_tasklock.celery import limit
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, raising, retries_once
from tests.conftest import UseCaches
from tests.inside import check_tasks, duplicate_of, explain_call
from tests.mailroom import Mailroom, Runs, killed_in_body
from tests.quorum import use_memory
from tests.steps import LONG, holder, taken

LATER = 300.0
"""seconds after which no test looks"""


def cooling(name: str = "job:1") -> bool:
    info = locks.get(name)
    return info is not None and info.cooling


# ------------------------------------------------------------------------------ who is refused


def test_the_second_call_is_skipped_while_the_lock_cools(room: Mailroom) -> None:
    # Given two calls of a task whose lock stays taken after a run that succeeded
    made = room.task(lock_cooldown=LATER)
    first = made.delay(1)
    made.delay(1)

    # I expect the first to run, and the second to be skipped with a reason of its own
    (ran, (_, marker)) = room.work_off()
    assert ran == ("SUCCESS", "done:1")
    assert (marker["reason"], marker["holder"]) == ("cooling_down", first.id)
    assert (holder("job:1").owner.task, cooling()) == (made.name, True)

    # And a call to run again when the lock was cleared; so it is without a message
    locks.clear("job:1")
    assert made(1) == "done:1"
    assert made(1)["reason"] == "cooling_down"


@pytest.mark.parametrize("on_conflict", ["retry", "coalesce"])
def test_retry_and_coalesce_wait_until_it_is_cool(room: Mailroom, on_conflict: str) -> None:
    made = room.task(lock_cooldown=LATER, on_conflict=on_conflict)
    assert made(1) == "done:1"
    made.delay(1)
    for _ in range(3):
        assert room.deliver(room.take())[0] == "IGNORED"
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", "done:1")]


# ------------------------------------------------------------------------------ which runs cool


def losing(self: Any, job: Any) -> None:
    locks.clear(self.lease.name)
    assert not self.lease.extend()
    self.lease.assert_held()


def replaced(self: Any, job: Any) -> Any:
    return self.request.replaced_task_nesting or self.replace(self.s(job))


BOTH = {"lock_cooldown": LATER, "lock_cooldown_after_error": 3 * LATER}
ALL = {**BOTH, "lock_hold_at_least": LATER}


@pytest.mark.parametrize(
    ("options", "work", "seconds"),
    [
        (BOTH, None, LATER),
        (BOTH, raising(KeyError("x")), 3 * LATER),
        ({"lock_cooldown": LATER}, raising(KeyError("x")), 0),
        ({"lock_hold_at_least": LATER}, None, LATER),
        # What goes on elsewhere may need the same lock
        (ALL, retries_once, 0),
        (ALL, replaced, 0),
        (ALL, losing, 0),
        (ALL, raising(Ignore()), 0),
        (ALL, raising(Reject(requeue=True)), 0),
        (ALL, raising(Reject(requeue=False)), 3 * LATER),
        (ALL, raising(SystemExit(1)), 0),
        (ALL, raising(KeyboardInterrupt()), 0),
    ],
    ids=["success", "error", "only after a success", "hold", "retry", "replace", "lost", "Ignore",
         "requeue", "Reject", "SystemExit", "interrupt"],
)  # fmt: skip
def test_each_outcome_has_its_own_time(
    room: Mailroom, options: dict[str, float], work: Any, seconds: float
) -> None:
    room.task(work, acks_late=True, **options).delay(1)
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        room.deliver(room.take())
    info = locks.get("job:1")
    left = info.ttl or 0 if info and info.cooling else 0
    assert seconds - LONG < left <= seconds
    if work in (retries_once, replaced):
        assert room.work_off() == [("SUCCESS", 1)]
        assert cooling(), "it cools in the end"


def test_a_run_under_the_lease_of_its_caller_cools_as_well(room: Mailroom) -> None:
    room.task(**BOTH).apply_async([1], lease=taken("job:1"))
    assert room.work_off() == [("SUCCESS", "done:1")]
    assert LATER - LONG < (holder("job:1").ttl or 0) <= LATER


def test_a_message_without_work_does_not_cool(room: Mailroom, row: Job) -> None:
    """The next one may find some. Nor does one that has died too often."""
    name, made = f"job:{row.pk}", room.task(guard=job_guard(), **ALL)
    for status, cools in ("done", False), ("queued", True):
        Job.objects.update(status=status)
        made.delay(row.pk)
        assert room.work_off()[0][0] == "SUCCESS"
        assert cooling(name) is locks.is_locked(name) is cools
    other = row.pk + 1  # The row's own lock cools.
    message = room.message(job=other, acks_late=True, lock_max_attempts=1, **ALL)
    killed_in_body(room, message)
    assert room.deliver(message, redelivered=True)[0] == "FAILURE"
    assert not locks.is_locked(f"job:{other}")


# ------------------------------------------------------------------------------ redeliveries


@pytest.mark.parametrize("by", ["operator", "other code", "another run", "its own run"])
def test_a_redelivery_waits_for_a_holder_that_is_no_run(room: Mailroom, by: str) -> None:
    """Such a holder does not do the job, which may have begun: also a lock that cools."""
    first = raising(KeyError(1)) if by == "its own run" else None
    made = room.task(Runs(first, None), acks_late=True, **ALL)
    made.delay(1)
    message = room.take()
    if by == "operator":
        assert locks.hold("job:1", LONG, "alice", "a migration")
    elif by == "other code":
        taken("job:1")
    elif by == "another run":
        assert made(1) is None
    else:  # Its worker died before it could acknowledge the message.
        assert room.deliver(message)[0] == "FAILURE"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.deliver(room.take())[0] == "IGNORED"
    locks.clear("job:1")
    assert room.work_off() == [("SUCCESS", None)]


# ------------------------------------------------------------------------------ in the queue


def test_a_call_is_no_duplicate_of_a_run_that_has_ended(room: Mailroom) -> None:
    """No run would come after it. It is sent, and skipped or run when it is delivered."""
    made = room.task(acks_late=True, unique_while="unfinished", lock_cooldown=LATER)
    made.delay(1)
    assert room.work_off() == [("SUCCESS", "done:1")]
    assert cooling()
    sent = made.delay(1)
    assert room.ids() == [sent.id]
    call = explain_call(made.name, (1,), {})
    assert call is not None
    assert duplicate_of(call) == sent.id
    assert room.work_off()[0][1]["reason"] == "cooling_down"
    assert duplicate_of(call) is None


def test_a_store_that_keeps_no_lock_for_so_long(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = room.task(lock_cooldown=1)
    limited = room.task(lock_limits=[limit("partner", 5, hold_at_least=1)])
    monkeypatch.setattr(locks.store, "longest_ttl", 0.5)
    wrong = [m.msg for m in check_tasks() if m.id == "django_tasklock.E006"]
    for task in (made, limited):
        assert [said for said in wrong if task.name in said]
        with pytest.raises(InvalidLockConfig, match="LONGEST_TTL"):
            task(1)
        assert not locks.is_locked("job:1")


def test_a_store_whose_leases_do_not_last_for_so_long(
    room: Mailroom, use_caches: UseCaches
) -> None:
    # Given a quorum, which has a longest ttl, and a task with a longer one
    use_memory(use_caches, LONGEST_TTL=100.0)
    long = room.task(lock_ttl=101, lock_limits=[limit("partner", 5)])
    bounded = room.task(lock_ttl=101, lock_max_hold=100)
    # I expect the checks to say once what each call would raise
    said = "ttl must be at most 100 s (LONGEST_TTL of the lock store 'default'), not 101 s"
    wrong = [m.msg for m in check_tasks() if m.id == "django_tasklock.E006"]
    assert wrong == [f"task {long.name}: {said}"]
    with pytest.raises(ValueError, match=re.escape(said)):
        long(1)
    assert bounded(1) == "done:1"
