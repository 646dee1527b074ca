"""``lock_limits``: rules beside the lock, each of which lets a few run, over all tasks.

With real workers: ``tests/hard_cases/test_many_limits.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery.exceptions import WorkerLostError

from django_tasklock import Lease, LockInfo, LockNotAcquired, locks
from django_tasklock.celery import by, limit
from django_tasklock.signals import lock_acquired, task_not_run
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import HOW, call, held_elsewhere, job_guard, retries, status
from tests.mailroom import Mailroom, Message, Runs, ends, killed_in_body
from tests.steps import LONG, holder, sent, taken
from tests.waiting import until

TENANT, ONLY = limit("tenant:7", 2), limit("tenant:7", 1)
PARTNER = limit("partner", 1, hold_at_least=LONG)


def names() -> list[str]:
    """What is held or cools."""
    return sorted(info.name for info in locks.list())


def seen(*_: Any) -> list[str]:
    """The body of a run that returns what is held meanwhile."""
    return names()


@contextmanager
def full(n: int = 2) -> Iterator[None]:
    """Other code holds all permits of the tenant meanwhile."""
    leases = [held_elsewhere("tenant:7", slots=n) for _ in range(n)]
    yield
    for lease in leases:
        assert lease.release()


def waits(room: Mailroom, message: Message, **how: Any) -> Message:
    """Deliver a message that is to go back to the queue. Returns it as it is there."""
    assert room.deliver(message, **how)[0] == "IGNORED"
    (message,) = room.waiting()
    return room.take(message.id)


def test_a_run_holds_its_lock_and_a_permit_of_each_limit(room: Mailroom) -> None:
    def of_pair(job: int, **_: Any) -> str:
        return f"pair:{job % 2}"

    limits = [limit(of_pair, 3), limit(by("job"), 2), limit("all", 1)]
    message = room.message(seen, 5, name="t", lock_slots=2, lock_limits=limits)
    with sent(lock_acquired) as acquired:
        held = ["all", "job:5#1", "pair:1#1", "t:5#1"]
        assert room.deliver(message) == ("SUCCESS", held)
    leases = [one["lease"] for one in acquired]
    assert [lease.name for lease in leases] == ["job:5#1", "pair:1#1", "t:5#1", "all"]
    assert [lease.template for lease in leases][2:] == ["t:{job}", "all"]
    assert {lease.owner.task_id for lease in leases} == {message.id}
    assert names() == []


def test_a_duplicate_is_skipped_though_a_limit_is_full(room: Mailroom) -> None:
    held_elsewhere("job:1")
    message = room.message(lock_limits=[TENANT])
    with full():
        assert room.deliver(message)[1]["reason"] == "already_processing"
    assert {event.name for event in locks.history(task_id=message.id)} == {"job:1"}


@pytest.mark.parametrize("again", [False, True], ids=["first", "redelivered"])
@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise", "coalesce", "run"])
def test_a_full_limit_means_later_as_often_as_it_takes(
    room: Mailroom, row: Job, on_conflict: str, again: bool
) -> None:
    # Given a message that may neither be retried nor die, and whose lock cools, as does its permit
    # of the first limit; the second limit is full
    runs, name = Runs(), f"job:{row.pk}"
    options: dict[str, Any] = {"lock_retry_for": 0, "lock_max_attempts": 1, "max_retries": 0}
    options |= {"acks_late": True, "guard": job_guard(), "lock_limits": [PARTNER, TENANT]}
    options |= {"lock_hold_at_least": LONG, "lock_cooldown_after_error": LONG}
    message = first = room.message(runs, row.pk, on_conflict=on_conflict, **options)

    # I expect it to come back as often as it is delivered, and to leave nothing behind
    times = 50 if on_conflict == "skip" else 5
    with full(), sent(task_not_run) as told:
        for _ in range(times):
            message = waits(room, message, redelivered=again)
            assert names() == ["tenant:7#1", "tenant:7#2"]
    assert [(one["outcome"], one["reason"]) for one in told] == [("requeued", "limit")] * times
    assert (message.id, message.headers["retries"]) == (first.id, 0)
    assert (runs, status(row)) == ([], "queued")

    # And the history to say for which limit it waits, by ever fewer of its looks
    events = locks.history(task_id=first.id)
    assert {(event.kind, event.name) for event in events} == {("refused", "tenant:7")}
    assert sum(event.count for event in events) == {5: 3, 50: 6}[times]

    # And then to run, and only then to cool
    assert room.deliver(message, redelivered=again)[0] == "SUCCESS"
    assert (runs, status(row)) == ([first.id], "done")
    assert {(info.name, info.cooling) for info in locks.list()} == {(name, True), ("partner", True)}


def test_it_comes_again_by_its_turn_at_the_limit(room: Mailroom) -> None:
    """The turns of a limit are of all locks and tasks; and a message that expires still does."""
    tasks = [room.task(lock_limits=[TENANT]), room.task(lock_name=None, lock_limits=[TENANT])]
    with full():
        dues = []
        for number in range(6):
            tasks[number % 2].apply_async([number], expires=LONG)
            message = waits(room, room.take())
            dues.append(datetime.fromisoformat(message.headers["eta"]))
            assert message.headers["expires"] is not None
    assert min(after - before for before, after in pairwise(dues)) > timedelta(seconds=0.1)


def test_a_message_on_which_others_rely_is_kept(room: Mailroom) -> None:
    # Given a debounced call; and a follow-up, which the lock has refused before
    room.task(debounce=LONG, lock_limits=[TENANT]).apply_async([1], expires=2 * LONG)
    debounced = room.take()
    lease = held_elsewhere("job:1")
    room.task(on_conflict="coalesce", lock_limits=[TENANT]).apply_async([1], expires=LONG)
    follow_up = waits(room, room.take())
    assert lease.release()

    # I expect them not to expire, and the follow-up to stay one
    with full():
        assert waits(room, debounced).headers["expires"] is None
        message = waits(room, follow_up)
    assert message.headers["expires"] is None
    assert message.ours["refused"] == follow_up.ours["refused"]


@HOW
def test_a_call_without_a_message_is_refused(room: Mailroom, how: str) -> None:
    task = room.task(lock_limits=[PARTNER, TENANT], lock_hold_at_least=LONG)
    with full(), pytest.raises(LockNotAcquired) as refused:
        call(task, how, 1)
    assert refused.value.name == "tenant:7"
    assert isinstance(refused.value.holder, LockInfo)
    assert refused.value.holder.slot in (1, 2)
    assert names() == []


def test_a_call_inside_a_run_goes_on_under_its_permit(room: Mailroom) -> None:
    inner = room.task(seen, lock_name="inner:{job}", lock_limits=[ONLY])
    outer = room.task(lambda self, job: inner(job), lock_limits=[ONLY])
    assert outer(1) == ["inner:1", "job:1", "tenant:7"]
    # Also if that is its own lock
    outer = room.task(lambda self, job: inner(job), lock_name="tenant:7", lock_slots=2)
    assert outer(1) == ["inner:1", "tenant:7#1"]


def test_main_process_clears_the_permits_of_a_killed_child(room: Mailroom) -> None:
    message = room.message(lock_slots=2, lock_limits=[PARTNER, TENANT], acks_late=True)
    request = room.received(message)
    other = taken("tenant:7", slots=3)
    killed_in_body(room, message)
    assert names() == ["job:1#1", "partner", "tenant:7#1", "tenant:7#2"]
    request.worker_pid = holder("partner").owner.pid
    ends(request, WorkerLostError())
    assert names() == [other.name]


@pytest.mark.parametrize("on_outage", ["retry", "raise", "run"])
def test_an_outage_between_lock_and_limit(room: Mailroom, on_outage: str) -> None:
    message = room.message(on_outage=on_outage, lock_limits=[TENANT, PARTNER])
    with ExitStack() as silent:

        def falls_silent(lease: Lease, **_: Any) -> None:
            if lease.name == "tenant:7#1":
                silent.enter_context(outage())

        lock_acquired.connect(falls_silent)
        state, _ = room.deliver(message)
        lock_acquired.disconnect(falls_silent)
    assert state == {"retry": "IGNORED", "raise": "FAILURE", "run": "SUCCESS"}[on_outage]
    assert len(room.waiting()) == (on_outage == "retry")
    # What it had is given back as soon as the store answers, and does not cool
    until(lambda: names() == [], "nothing is held")


def test_a_run_goes_on_without_a_permit_that_it_has_lost(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    message = room.message(lambda *_: locks.clear("tenant:7#1"), lock_limits=[TENANT])
    assert room.deliver(message) == ("SUCCESS", True)
    events = {(event.kind, event.name) for event in locks.history(task_id=message.id)}
    assert events == {("cleared", "tenant:7#1"), ("lost", "tenant:7#1")}
    assert "lock tenant:7#1 in store default is lost" in caplog.text


def test_a_retry_counts_against_the_rate(room: Mailroom) -> None:
    room.task(retries, lock_limits=[limit("partner", 2, hold_at_least=LONG)]).delay(1)
    assert [room.deliver(room.take())[0] for _ in range(2)] == ["RETRY", "RETRY"]
    assert {(info.name, info.cooling) for info in locks.list()} == {
        ("partner#1", True), ("partner#2", True),
    }  # fmt: skip
    assert waits(room, room.take()).headers["retries"] == 2


def test_a_handed_lease_and_the_limits(room: Mailroom) -> None:
    task = room.task(seen, lock_limits=[TENANT])
    task.apply_async([1], lease=taken("job:1"))
    message = room.take()
    with full():
        message = waits(room, message)
        assert "job:1" not in names()
    assert room.deliver(message) == ("SUCCESS", ["job:1", "tenant:7#1"])


def test_names_that_turn_out_to_be_the_same(room: Mailroom) -> None:
    task = room.task(lock_limits=[limit("job:{other}", 2)])
    assert task(1, 2) == "done:1"
    with pytest.raises(ValueError, match=r"has \['job:1', 'job:1'\]: lock_name and all lock_limi"):
        task(1, 1)
