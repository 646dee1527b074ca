"""A message that meets an operator's hold waits for its end, whatever ``on_conflict`` says.

With real workers: ``tests/hard_cases/test_conflicts.py``.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any

import pytest

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock.signals import task_not_run
from django_tasklock.stores.base import Note
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, lose, recording, status
from tests.inside import wait_in_slices
from tests.mailroom import Mailroom, Message, Runs, elsewhere
from tests.steps import LONG, SOON_SECONDS, Meanwhile, holder, sent, taken, waiting
from tests.waiting import until

ON_CONFLICT = pytest.mark.parametrize(
    "on_conflict", ["skip", "retry", "raise", "coalesce", "run", lambda holder: "skip"]
)


def held(name: str = "job:1", seconds: float = LONG) -> None:
    """Hold the lock as an operator."""
    assert locks.hold(name, seconds, "alice", "a migration") is not None


def waits(room: Mailroom, message: Message, **how: Any) -> Message:
    """Deliver a message that is to go back to the queue. Returns it as it is there."""
    assert room.deliver(message, **how)[0] == "IGNORED"
    (message,) = room.waiting()
    return room.take(message.id)


def due(message: Message) -> float:
    """When it is to come again, in seconds since the epoch."""
    return datetime.fromisoformat(message.headers["eta"]).timestamp()


@ON_CONFLICT
@pytest.mark.parametrize("late", [True, False], ids=["acks_late", ""])
def test_it_waits_for_free_and_runs_when_the_hold_is_cleared(
    room: Mailroom, row: Job, on_conflict: Any, late: bool
) -> None:
    # Given a message that may neither be retried nor die
    runs, name = Runs(), f"job:{row.pk}"
    options: dict[str, Any] = {"lock_retry_for": 0, "lock_max_attempts": 1, "max_retries": 0}
    options |= {"acks_late": late, "guard": job_guard()}
    message = first = room.message(runs, row.pk, on_conflict=on_conflict, **options)

    # I expect it to come back from a hold as often as it is delivered, and to be told so
    held(name)
    with sent(task_not_run) as told:
        for _ in range(20):
            message = waits(room, message)
    assert [(one["outcome"], one["reason"]) for one in told] == [("requeued", "held")] * 20
    assert (message.id, message.headers["retries"]) == (first.id, 0)
    assert (runs, status(row)) == ([], "queued")

    # And the history to have its 1st, 2nd, 4th, 8th and 16th look
    looks = [event for event in locks.history(task_id=first.id) if event.kind == "refused"]
    assert sum(event.count for event in looks) == 5

    # And then to run, though a broker delivers it again
    locks.clear(name)
    assert room.deliver(message, redelivered=late)[0] == "SUCCESS"
    assert (runs, status(row)) == ([first.id], "done")


@pytest.mark.parametrize("slots", [1, 2])
def test_it_does_not_wait_in_its_worker(room: Mailroom, slots: int) -> None:
    """Which would do no other work then: ``lock_wait`` is for runs, which end."""
    held()
    message = waits(room, room.message(lock_wait=None, lock_slots=slots))
    locks.clear("job:1")
    lease = Meanwhile(lambda: taken("job:1", slots=slots)).result()
    run = Meanwhile(lambda: room.deliver(message))
    if slots == 1:
        until(lambda: waiting("job:1") == 1, "the run")
        assert lease.release()
    assert run.result() == ("SUCCESS", "done:1")


def test_a_run_waits_also_in_the_first_process_of_a_container(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose parent has the number 0."""
    lease = taken("job:1")
    monkeypatch.setattr(os, "getppid", lambda: 0)
    message = room.message(lock_wait=LONG)
    run = Meanwhile(lambda: room.deliver(message))
    until(lambda: waiting("job:1") == 1, "the run")
    assert lease.release()
    assert run.result() == ("SUCCESS", "done:1")


def test_a_pause_that_is_over_is_no_error() -> None:
    assert wait_in_slices(0.0) is None


def test_it_leaves_its_worker_when_a_hold_comes_before_it(room: Mailroom) -> None:
    # Given a run that ends, a hold that waits for its lock, and then a message that does so
    lease = taken("job:1")
    hold = Meanwhile(lambda: locks.hold("job:1", LONG, "alice", wait=None))
    until(lambda: waiting("job:1") == 1, "the hold")
    message = room.message(lock_wait=None)
    run = Meanwhile(lambda: room.deliver(message))
    until(lambda: waiting("job:1") == 2, "the message")
    # When the hold has the lock, I expect the message to wait in its queue
    assert lease.release()
    assert hold.result() is not None
    assert run.result(SOON_SECONDS)[0] == "IGNORED"


def test_it_comes_again_after_the_hold_one_after_the_other_and_sees_a_clear(room: Mailroom) -> None:
    task = room.task()
    # Of a hold that ends soon, each gets a turn after its end
    held(seconds=4)
    end = time.time() + (holder("job:1").ttl or 0.0)
    for _ in range(3):
        task.delay(1)
        assert end - 0.1 < due(waits(room, room.take())) < end + 2
    last, *_ = (locks.store.get_note("turn job:1") or "0").split()
    assert float(last) > end + 0.2
    # Of a longer one each comes within 15 seconds, and not all together
    locks.clear("job:1")
    held(seconds=7200)
    locks.store.set_note(Note("turn job:1", "0", LONG))
    comes = []
    for _ in range(20):
        task.delay(1)
        before = time.time()
        end = due(waits(room, room.take()))
        assert end - before > 7.4
        comes.append(end - time.time())
    assert max(comes) < 12.6
    assert max(comes) - min(comes) > 1


def test_the_time_under_a_hold_is_none_of_lock_retry_for(room: Mailroom) -> None:
    # Given a message that was refused by another run for almost as long as it may be
    message = room.message(on_conflict="retry", lock_retry_for=60)
    message.ours["refused"] = [time.time() - 59, 0]
    held()
    message = waits(room, message)
    message.ours["sent"] -= 7200.0

    # I expect its budget to begin anew when it meets a run after the hold
    locks.clear("job:1")
    with lock("job:1", ttl=LONG):
        _, error = elsewhere(room, message)
        assert not isinstance(error, LockNotAcquired)
        message = room.take()
        assert message.ours["refused"][0] == pytest.approx(time.time(), abs=5)
        message.ours["refused"][0] -= 60
        assert elsewhere(room, message)[0] == "FAILURE"


@pytest.mark.parametrize("on_conflict", ["skip", "retry"])
def test_a_duplicate_is_refused_while_the_message_waits(room: Mailroom, on_conflict: str) -> None:
    """However long the hold is: ``unique_for`` begins anew with each delivery."""
    task = room.task(unique_while="queued", on_conflict=on_conflict, unique_for=1.5)
    first, sent_at = task.delay(1), time.monotonic()
    held()
    message = waits(room, room.take())
    while time.monotonic() < sent_at + 2:
        message = waits(room, message)
        assert task.delay(1).id == first.id
    locks.clear("job:1")
    assert room.waiting() == []
    assert room.deliver(message)[0] == "SUCCESS"
    assert task.delay(1).id != first.id


def test_it_expires_unless_others_rely_on_it(room: Mailroom) -> None:
    """As one of a burst, which has replaced others."""
    held()
    for options, kept in (({}, True), ({"debounce": 0.01}, False)):
        task = room.task(**options)
        task.apply_async((1,), expires=100)
        task.apply_async((1,), expires=100)
        room.take()
        message = waits(room, room.take())
        assert (message.headers["expires"] is not None) is kept


def test_the_last_call_of_a_burst_waits_and_a_later_one_replaces_it(room: Mailroom) -> None:
    task, runs = recording(room, debounce=0.01)
    held()
    task.delay(1, "first")
    message = waits(room, room.take())
    task.delay(1, "later")
    later = waits(room, room.take())
    locks.clear("job:1")
    assert room.deliver(message)[1]["reason"] == "debounced"
    assert room.deliver(later) == ("SUCCESS", "done:later")
    assert runs == ["later"]


def test_a_follow_up_stays_one_under_a_hold(room: Mailroom) -> None:
    """It leaves its job to one that was refused later."""
    task, runs = recording(room, on_conflict="coalesce", acks_late=True)
    older, newer = task.delay(1, "older"), room.take(task.delay(1, "newer").id)
    with lock("job:1", ttl=LONG):
        assert elsewhere(room, room.take(older.id))[0] == "IGNORED"
    held()
    message = waits(room, room.take(older.id))
    locks.clear("job:1")
    with lock("job:1", ttl=LONG):
        assert elsewhere(room, newer)[0] == "IGNORED"
    assert room.deliver(message)[1]["reason"] == "coalesced"
    assert room.work_off() == [("SUCCESS", "done:newer")]
    assert runs == ["newer"]


def test_one_whose_handed_lease_is_over_waits(room: Mailroom) -> None:
    task = room.task(acks_late=True)
    with lock("job:1", ttl=LONG) as lease:
        task.apply_async([1], lease=lease)
    locks.clear("job:1")
    held()
    message = waits(room, room.take())
    locks.clear("job:1")
    assert room.deliver(message) == ("SUCCESS", "done:1")


def test_a_run_whose_lock_was_cleared_and_held_starts_over_after_the_hold(room: Mailroom) -> None:
    """Nobody else does its work."""

    def first(self: Any, job: Any) -> None:
        lose(self.lease)
        held()
        self.lease.assert_held()

    runs = Runs(first, None)
    message = waits(room, room.message(runs, acks_late=True))
    message = waits(room, message)
    locks.clear("job:1")
    assert room.deliver(message)[0] == "SUCCESS"
    assert len(runs) == 2


def test_a_hold_of_the_name_keeps_all_its_permits_from_messages(room: Mailroom) -> None:
    """``locks hold tenant:7`` pauses the tenant; who has a permit keeps it."""
    task = room.task(lock_slots=2)
    other = taken("job:1", slots=2)
    held()
    task.delay(1)
    message = waits(room, room.take())
    assert other.held
    assert holder("job:1#1").token == other.token
    locks.clear("job:1")
    assert room.deliver(message) == ("SUCCESS", "done:1")
