"""``on_conflict="replace"``, message by message. With workers: ``tests/hard_cases``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from tests.app.models import Job
from tests.celery_tasks.conftest import (
    HOW,
    call,
    job_guard,
    raising,
    recording,
    retries,
    status,
)
from tests.conftest import UseRedis
from tests.inside import recall_after
from tests.mailroom import REDELIVERY, Mailroom, Runs, elsewhere, killed_in_body
from tests.servers import RedisServer
from tests.steps import LONG, Traffic, holder, silent
from tests.tenants import MAKE_KEY_OF_TENANT, tenant
from tests.waiting import until

Body = Callable[[Any, Any], Any]
MAX_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    recall_after(monkeypatch, 0.02)


def replacing(room: Mailroom, *bodies: Body | None, **options: Any) -> tuple[Any, Runs]:
    """A task whose calls replace each other, and its runs."""
    runs = Runs(*bodies)
    return room.task(runs, on_conflict="replace", **options), runs


def recalled(task: Any, job: Any) -> str:
    """A body that is replaced by a later call, which waits for its end; and that goes on."""
    newest = task.delay(job)
    until(lambda: not task.lease.held, "the recall")
    assert task.lease.remaining == 0.0
    assert task.lease.extend() is False
    return str(newest.id)


def then(after: Body) -> Body:
    """The same, and after the recall something else."""

    def body(task: Any, job: Any) -> Any:
        recalled(task, job)
        return after(task, job)

    return body


def asserts(task: Any, job: Any) -> None:
    task.lease.assert_held()


def skipped(outcome: tuple[str, Any], newest: str) -> None:
    """The message has returned the marker, which names the newest call."""
    state, marker = outcome
    assert state == "SUCCESS"
    assert (marker["status"], marker["reason"], marker["holder"]) == ("skipped", "replaced", newest)


# ------------------------------------------------------------------------------ those that wait


def test_of_the_calls_that_wait_the_newest_runs(room: Mailroom) -> None:
    # Given a lock that is held, and calls that are sent at once, and wait for it
    task, runs = recording(room, on_conflict="replace")
    with lock("job:1", ttl=LONG):
        results = [task.delay(1, number) for number in range(3)]
        assert [message.headers["eta"] for message in room.waiting()] == [None] * 3
        first, second, newest = (room.take() for _ in results)
        # I expect the older ones to be skipped, and the newest to wait, however often it comes
        for older in (first, second):
            skipped(room.deliver(older), newest.id)
        for _ in range(3):
            assert room.deliver(newest)[0] == "IGNORED"
            newest = room.take()
    # And to run when the lock is free
    assert room.deliver(newest) == ("SUCCESS", "done:2")
    assert runs == [2]


# ------------------------------------------------------------------------------ the one that runs


@pytest.mark.parametrize("late", [True, False], ids=["acks_late", "early"])
@pytest.mark.parametrize(
    "after",
    [asserts, raising(ValueError("of the body")), retries, lambda task, job: "late"],
    ids=["assert_held", "another error", "retry", "returns"],
)
@pytest.mark.parametrize("fence", ["lock_fence", None])
def test_a_run_that_is_replaced_ends_and_counts_as_one_that_never_ran(
    room: Mailroom, row: Job, after: Body, late: bool, fence: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    # Given a run during which a later call comes
    said: dict[str, Any] = {"lock_cooldown": LONG, "lock_cooldown_after_error": LONG}
    guard = job_guard(fence, failed="failed")
    task, runs = replacing(room, then(after), None, guard=guard, acks_late=late, **said)
    task.delay(row.pk)
    message = room.take()
    with caplog.at_level(logging.INFO):
        outcome = room.deliver(message)
    newest = room.take()

    # I expect it to end with the marker, once its body has ended, or to go on in a retry
    if outcome[0] == "RETRY":
        assert (after, late) == (retries, False)
        newest, message = (newest, room.take(message.id))
    else:
        skipped(outcome, newest.id)
        assert f"the later call {newest.id} replaces it" in caplog.text
    # And the row to be open again, and the lock to be free
    assert status(row) == "queued"
    assert locks.get(f"job:{row.pk}") is None
    # And the newest to run, and another copy of the old message never to run again
    assert room.deliver(newest)[0] == "SUCCESS"
    assert status(row) == "done"
    room.deliver(message, redelivered=outcome[0] != "RETRY")
    assert room.waiting() == []
    assert runs == [message.id, newest.id]


def test_until_its_body_has_ended_it_keeps_the_lock_and_the_lock_is_renewed(
    room: Mailroom,
) -> None:
    """However short its ttl, and though it never asks whether it is replaced."""

    def ends() -> float:
        assert holder("job:1").token == task.lease.token
        return time.monotonic() + (holder("job:1").ttl or 0)

    def body(self: Any, job: Any) -> None:
        recalled(self, job)
        last = time.monotonic() + self.lease.ttl
        while ends() < last + 1:
            outcomes.append(elsewhere(room, room.take())[0])

    outcomes: list[str] = []
    task, runs = replacing(room, body, None, lock_ttl=1)
    first = task.delay(1).id
    room.deliver(room.take())
    (newest,) = room.ids()
    assert set(outcomes) == {"IGNORED"}
    room.work_off()
    assert runs == [first, newest]


def test_a_body_that_has_returned_before_the_recall_counts(room: Mailroom, row: Job) -> None:
    task, _ = replacing(room, lambda task, job: task.delay(job).id, guard=job_guard(None))
    task.delay(row.pk)
    assert room.deliver(room.take()) == ("SUCCESS", room.ids()[0])
    assert status(row) == "done"


def test_a_call_inside_goes_on_under_the_lock_and_nothing_is_handed_on(room: Mailroom) -> None:
    def body(task: Any, job: Any) -> None:
        recalled(task, job)
        inside.append(task(job))
        with pytest.raises(LeaseLost, match=r"the later call .* replaces it"):
            task.lease.detach()
        inside.append(holder("job:1").token == task.lease.token)

    inside: list[Any] = []
    task, _ = replacing(room, body, lambda task, job: "inside", None)
    task.delay(1)
    outcome = room.deliver(room.take())
    assert inside == ["inside", True]
    skipped(outcome, room.ids()[0])


def test_a_link_of_a_chain_that_is_replaced_gives_the_marker(room: Mailroom) -> None:
    task, _ = replacing(room, recalled, None, lock_name="job")
    collect, _ = recording(room)
    (task.s(1) | collect.s()).apply_async()
    outcome = room.deliver(room.take())
    newest, link = room.waiting()
    skipped(outcome, newest.id)
    assert link.args == [outcome[1]]


def test_a_run_of_a_tenant_is_recalled(use_redis: UseRedis, room: Mailroom) -> None:
    """By a thread that has no tenant."""
    use_redis(KEY_FUNCTION=MAKE_KEY_OF_TENANT)
    task, _ = replacing(room, recalled)
    with tenant("acme"):
        task.delay(1)
        outcome = room.deliver(room.take())
    skipped(outcome, room.ids()[0])


# ------------------------------------------------------------------------------ calls keep coming


def test_with_debounce_max_a_run_is_not_replaced_for_ever(
    room: Mailroom, redis_server: RedisServer
) -> None:
    # Given a run whose burst began longer ago than debounce_max when more calls come
    def first(task: Any, job: Any) -> str:
        until(lambda: time.time() > began + MAX_SECONDS, "the end of its burst")
        later.extend(task.delay(job).id for _ in range(2))
        traffic = Traffic(redis_server)
        until(lambda: traffic.scripts() > 3, "some looks at the note")
        assert task.lease.held
        return "first"

    later: list[str] = []
    task, runs = replacing(room, first, None, recalled, None, debounce_max=MAX_SECONDS)
    sent = task.delay(1)
    began = time.time()
    # I expect it not to be replaced, and of the other calls the last one to run
    assert room.deliver(room.take()) == ("SUCCESS", "first")
    skipped(room.deliver(room.take()), later[1])
    room.work_off()
    assert runs == [sent.id, later[1]]
    # And the next call to begin a burst of its own, and to be replaced
    task.delay(1)
    outcome = room.deliver(room.take())
    skipped(outcome, room.ids()[0])
    assert room.states() == ["SUCCESS"]


def test_with_debounce_calls_are_delayed_and_a_run_is_replaced_too(room: Mailroom) -> None:
    task, runs = replacing(room, recalled, None, debounce=LONG)
    first, second = [task.delay(1) and room.take() for _ in range(2)]
    assert first.headers["eta"]
    skipped(room.deliver(first), second.id)
    outcome = room.deliver(second)
    third = room.take()
    assert third.headers["eta"]
    skipped(outcome, third.id)
    assert room.deliver(third)[0] == "SUCCESS"
    assert runs == [second.id, third.id]


def test_a_retry_is_as_old_as_its_call(room: Mailroom) -> None:
    # Given an older and a newer call, both of which retry
    task, runs = replacing(room, retries, retries, None)
    old = task.delay(1).id
    room.deliver(room.take())
    newest = task.delay(1).id
    room.deliver(room.take(newest))
    # I expect the retry of the newer one to run, and that of the older one not to run after it
    room.deliver(room.take(newest))
    skipped(room.deliver(room.take(old)), newest)
    assert (runs, room.waiting()) == ([old, newest, newest], [])


# ------------------------------------------------------------------------------ deaths, outages


def test_of_runs_that_died_the_older_one_is_skipped_and_the_newest_runs_again(
    room: Mailroom, row: Job
) -> None:
    task, runs = replacing(room, acks_late=True, guard=job_guard())
    task.delay(row.pk)
    old = room.take()
    killed_in_body(room, old)
    task.delay(row.pk)
    newest = room.take()
    skipped(room.deliver(old, redelivered=REDELIVERY), newest.id)
    assert status(row) == "working"
    killed_in_body(room, newest)
    assert room.deliver(newest, redelivered=REDELIVERY)[0] == "SUCCESS"
    assert (runs, status(row)) == ([newest.id], "done")


def test_an_older_call_never_runs_after_a_newer_one_whose_sender_died(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it could note that it had sent the call."""
    task, runs = replacing(room)
    task.delay(1)
    with monkeypatch.context() as patch:
        silent(patch, "update_note")
        newest = task.delay(1).id
    room.deliver(room.take(newest))
    skipped(room.deliver(room.take()), newest)
    assert runs == [newest]


def test_in_an_outage_a_run_goes_on_and_is_recalled_after_it(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall_after(monkeypatch, 0.5)  # Not before the outage.

    def body(task: Any, job: Any) -> None:
        task.delay(job)
        with monkeypatch.context() as patch:
            asked = silent(patch, "get")
            until(lambda: len(asked) > 1, "looks in vain")
            assert task.lease.held
        until(lambda: not task.lease.held, "the recall")

    task, _ = replacing(room, body)
    task.delay(1)
    outcome = room.deliver(room.take())
    skipped(outcome, room.ids()[0])


def test_a_message_without_a_moment_waits_replaces_nothing_and_is_replaced_by_nothing(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is sent in an outage, and one that is sent by name."""
    task, runs = recording(room, on_conflict="replace", lock_retry_for=0.001)
    task.delay(1, "before")
    with monkeypatch.context() as patch:
        silent(patch, "get")
        task.delay(1, "in an outage")
    room.app.send_task(task.name, (1, "by name"), queue=room.queue)
    with lock("job:1", ttl=LONG):
        for _ in range(2):
            assert [room.deliver(room.take())[0] for _ in range(3)] == ["IGNORED"] * 3
    task.delay(1, "newest")
    reasons = [value["reason"] for _, value in room.work_off() if isinstance(value, dict)]
    assert (runs, reasons) == (["in an outage", "by name", "newest"], ["replaced"])


@HOW
def test_a_call_that_has_no_message_is_refused(room: Mailroom, how: str) -> None:
    task, runs = replacing(room)
    with lock("job:1", ttl=LONG), pytest.raises(LockNotAcquired):
        call(task, how, 1)
    call(task, how, 1)
    notes = room.redis.keys(f"*debounce {task.name} *")
    assert (len(runs), notes, room.waiting()) == (1, [], [])
