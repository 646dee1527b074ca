"""LockedTask with a guard: the row says whether there is still work, and whose result counts."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from django.db import transaction

from django_tasklock import LeaseLost, StoreUnavailable, lock, locks, signals
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import HOW, call, job_guard, raising, status
from tests.inside import before_the_release, give_up_row
from tests.mailroom import Mailroom
from tests.steps import LONG, Meanwhile, killed_in_child, taken
from tests.waiting import PATIENCE, until


@HOW
def test_a_task_claims_its_row_and_finishes_it(room: Mailroom, row: Job, how: str) -> None:
    # Given a task whose argument names the row, which waits for work
    def work(self: Any, job: int) -> str:
        found = Job.objects.get(pk=job)
        assert (found.status, found.lock_fence) == ("working", self.lease.fence)
        return "done"

    task, name = room.task(work, guard=job_guard()), f"job:{row.pk}"

    # I expect a call to be skipped while another one holds the lock, and the row to wait
    lease = taken(name)
    assert call(task, how, row.pk)["reason"] == "already_processing"
    assert status(row) == "queued"
    lease.release()

    # I expect the next call to do the work, and the row to say so, during the run and after it
    assert call(task, how, row.pk) == "done"
    assert status(row) == "done"

    # And a further call to find nothing to do
    assert call(task, how, row.pk)["reason"] == "invalid_state"


def test_row_in_no_state_to_be_worked_on_is_skipped(
    room: Mailroom, row: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_tasklock")
    Job.objects.update(status="done")
    task, name = room.task(guard=job_guard()), f"job:{row.pk}"
    marker = {"status": "skipped", "reason": "invalid_state", "lock": name, "holder": None}
    assert task(row.pk) == marker
    task.delay(row.pk)
    assert room.work_off() == [("SUCCESS", marker)]
    assert not locks.is_locked(name)
    said = [text for text in caplog.messages if text.startswith(f"skipped {task.name}[")]
    wanted = f"]: its row app.Job {row.pk} is not in a state to be worked on, lock {name}"
    assert said[0].endswith(wanted)


@HOW
def test_a_row_that_is_not_there_is_said_to_be_sent_too_early(
    room: Mailroom, transactional_db: None, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    # Given a call for a row that is not committed yet, or was deleted
    marker = call(room.task(guard=job_guard()), how, 7)

    # I expect it to be skipped as before, and a warning to say what to do
    assert marker["reason"] == "invalid_state"
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert "]: there is no row app.Job 7, lock job:7. Was it sent before the" in said.getMessage()
    assert said.getMessage().endswith("Use delay_on_commit() or transaction.on_commit()")


@pytest.mark.parametrize("taken_by", [None, "another"])
def test_a_call_inside_atomic_is_one_error_before_the_lock_is_asked_for(
    room: Mailroom, row: Job, caplog: pytest.LogCaptureFixture, taken_by: str | None
) -> None:
    if taken_by:
        taken(f"job:{row.pk}")
    with pytest.raises(RuntimeError, match="atomic") as raised, transaction.atomic():
        room.task(guard=job_guard())(row.pk)
    assert str(raised.value).endswith("Move atomic() into the task, or call it in on_commit().")
    assert raised.value.__context__ is None
    assert caplog.messages == []
    assert status(row) == "queued"


def test_a_call_inside_its_own_run_may_be_inside_atomic(room: Mailroom, row: Job) -> None:
    def work(self: Any, job: int) -> Any:
        calls.append(job)
        with transaction.atomic():
            return "done" if len(calls) == 2 else self(job)

    calls = list[int]()
    assert room.task(work, guard=job_guard())(row.pk) == "done"
    assert status(row) == "done"


# ------------------------------------------------------------------------------ how a run ends


def around(guard: StatusGuard, verb: str, do: Callable[[], object], *, after: bool = False) -> Any:
    """The guard, with something done before each call of a verb, or after it."""
    real = getattr(guard, verb)

    def both(*args: Any) -> Any:
        if not after:
            do()
        answer = real(*args)
        if after:
            do()
        return answer

    setattr(guard, verb, both)
    return guard


@pytest.mark.parametrize("where", ["claim", "body"])
@pytest.mark.parametrize(
    ("error", "left_as"),
    [
        (SoftTimeLimitExceeded(), "failed"),
        (Ignore(), "failed"),
        (Retry("later"), "queued"),
        (Reject("later", requeue=True), "queued"),
        (SystemExit(), "queued"),
    ],
)
def test_a_row_waits_again_if_its_message_comes_again(
    room: Mailroom, row: Job, where: str, error: BaseException, left_as: str
) -> None:
    """`test_guarded_row` has all other ends."""
    guard, body = job_guard(), raising(error)
    if where == "claim":
        around(guard, "claim", lambda: body(None, None), after=True)
    with pytest.raises(type(error)):
        room.task(body, guard=guard)(row.pk)
    assert status(row) == left_as
    assert not locks.is_locked(f"job:{row.pk}")


def test_a_call_that_was_refused_while_the_claim_failed_is_not_lost(
    room: Mailroom, row: Job
) -> None:
    """It has made the row ready, and relies on the message that waits."""
    sent: list[str] = []

    def call_once() -> None:
        if not sent:
            Job.objects.update(status="queued")
            sent.append(task.delay(row.pk).id)

    guard = around(job_guard(), "claim", call_once, after=True)
    task = room.task(guard=guard, unique_while="queued")
    Job.objects.update(status="done")
    first = task.delay(row.pk).id
    assert room.work_off() == [("SUCCESS", f"done:{row.pk}")]
    assert (sent, status(row)) == ([first], "done")


@HOW
def test_a_call_inside_another_run_claims_a_row_of_its_own(
    room: Mailroom, row: Job, how: str
) -> None:
    """A task with the same lock, and the task itself for another row; not for its own."""
    other = Job.objects.create()
    seen: list[tuple[int, str]] = []

    def look(self: Any, job: int, then: int | None = None) -> Any:
        seen.append((job, Job.objects.get(pk=job).status))
        return then and call(inner, how, then)

    options = {"base": LockedTask, "bind": True, "lock_name": "all", "guard": job_guard()}
    inner = room.register(look, name="inner", **options)
    outer = room.task(lambda self, job: call(inner, how, job), lock_name="all")
    outer(row.pk)
    assert (seen, status(row)) == ([(row.pk, "working")], "done")
    assert outer(row.pk)["reason"] == "invalid_state"
    Job.objects.update(status="queued")
    inner(row.pk, other.pk)
    assert seen[1:] == [(row.pk, "working"), (other.pk, "working")]
    assert (status(row), status(other)) == ("done", "done")
    Job.objects.update(status="queued")
    inner(row.pk, row.pk)
    assert status(row) == "done"
    assert not locks.is_locked("all")


# ------------------------------------------------------------------------------ outages


@HOW
@pytest.mark.parametrize("on_outage", ["raise", "retry"])
def test_an_outage_is_never_a_skip(room: Mailroom, how: str, on_outage: str) -> None:
    """Without a queue to go back to, the caller is told."""
    with outage(), pytest.raises(StoreUnavailable):
        call(room.task(on_outage=on_outage), how, 7)


# ------------------------------------------------------------------------------ done again


def again(self: Any, job: int) -> None:
    Job.objects.filter(pk=job).update(done_count=Job.objects.get(pk=job).done_count + 1)


REPEATED = job_guard(source=["queued", "done"])


def test_41_each_call_works_on_it_and_a_redelivery_after_the_end_does_not(
    room: Mailroom, row: Job
) -> None:
    task = room.task(again, guard=REPEATED, acks_late=True)
    for calls in (1, 2):
        task.delay(row.pk)
        message = room.take()
        assert room.deliver(message)[0] == "SUCCESS"
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        assert (status(row), row.done_count) == ("done", calls)


def test_41_a_run_that_was_killed_before_its_result_was_stored_is_not_done_again(
    room: Mailroom, row: Job
) -> None:
    """Its note says that it has ended. Its message ends as a success, with the marker."""
    message = room.message(again, row.pk, guard=REPEATED, acks_late=True)

    def killed_after_release() -> None:
        die = partial(os.kill, os.getpid(), signal.SIGKILL)
        signals.lock_released.connect(lambda **_: die(), weak=False)
        room.deliver(message)

    killed_in_child(killed_after_release)
    state, marker = room.deliver(message, redelivered=True)
    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
    assert (status(row), row.done_count) == ("done", 1)


def test_41_a_row_that_another_call_has_done_is_not_marked_as_failed(
    room: Mailroom, row: Job
) -> None:
    """By a message that is given up: its own runs have left the row in another status."""
    Job.objects.update(status="done")
    with lock(f"job:{row.pk}", ttl=LONG) as lease:
        give_up_row(room.task(again, guard=REPEATED), [row.pk], lease.fence)
    assert status(row) == "done"


# ------------------------------------------------------------------------------ late runs

SECONDS = 0.3
"""of a late run's lease, which is over before the run goes on"""


class Late:
    """The run of a message that is held up at some point until its lease is over, and `goes_on`."""

    def __init__(self, room: Mailroom, task: Any, row: Job, **delivered: bool) -> None:
        self._met = 0
        self._on = threading.Event()
        task.lock_ttl, task.lock_renew = SECONDS, False
        task.delay(row.pk)
        self.message = room.take()
        self._deliver = partial(room.deliver, self.message, **delivered)
        self._task, self._name = task, f"job:{row.pk}"

    def here(self) -> bool:
        """Hold the first one up. Returns whether it is the first."""
        self._met += 1
        if self._met > 1:
            return False
        assert self._on.wait(PATIENCE)
        return True

    def is_late(self) -> None:
        """Begin it, and wait until its lease is over. Those of others last."""
        self._run = Meanwhile(self._deliver)
        until(lambda: self._met, "the first lease")
        self._task.lock_ttl = LONG
        self._task._hows.clear()  # Its options are read once.
        until(lambda: not locks.is_locked(self._name), "the end of the lease")

    def goes_on(self) -> tuple[str, Any]:
        self._on.set()
        return self._run.result()


@contextmanager
def at_grants(do: Callable[[], object]) -> Iterator[None]:
    """Have something done at each grant of a lease, before its row is claimed."""

    def granted(**_: Any) -> None:
        do()

    signals.lock_acquired.connect(granted)
    yield
    signals.lock_acquired.disconnect(granted)


@pytest.mark.parametrize("where", ["before the claim", "in the claim", "in the body"])
@pytest.mark.parametrize("redelivery", ["has ended", "went back", "is at work, and then dies"])
def test_a_late_run_leaves_the_row_and_the_message_to_its_redelivery(
    room: Mailroom, row: Job, where: str, redelivery: str
) -> None:
    """Its own end does not acknowledge the message: the redelivery may still be cut short."""
    runs: list[bool] = []
    late: Late

    def work(self: Any, job: Any) -> None:
        if where == "in the body" and late.here():
            return
        runs.append(True)
        if len(runs) == 1 and redelivery != "has ended":
            if redelivery != "went back":
                assert late.goes_on()[0] == "IGNORED"
            raise SystemExit

    guard = around(job_guard(), "claim", lambda: where == "in the claim" and late.here())
    task = room.task(work, acks_late=True, guard=guard)
    with at_grants(lambda: where == "before the claim" and late.here()):
        late = Late(room, task, row)
        late.is_late()
        with ExitStack() if redelivery == "has ended" else pytest.raises(SystemExit):
            assert room.deliver(late.message, redelivered=True)[0] == "SUCCESS"
        if redelivery != "is at work, and then dies":
            assert late.goes_on()[0] == "IGNORED"
        elif where != "in the body":
            room.deliver(late.message, redelivered=True)
        room.work_off()
    assert status(row) == "done"
    assert len(runs) == (1 if redelivery == "has ended" else 2)
    assert not locks.is_locked(f"job:{row.pk}")


@pytest.mark.parametrize("guarded", [False, True], ids=["", "guarded"])
@pytest.mark.parametrize("where", ["in the body", "at its end"])
def test_without_a_fence_a_late_run_does_not_take_its_redelivery_along(
    room: Mailroom, row: Job, monkeypatch: pytest.MonkeyPatch, where: str, guarded: bool
) -> None:
    """Where it is at work while the late run ends, and then dies."""
    runs: list[bool] = []

    def work(self: Any, job: Any) -> None:
        runs.append(True)
        if where == "in the body" and late.here():
            return
        if len(runs) == 2:
            assert late.goes_on()[0] == "IGNORED"
            raise SystemExit

    guard = job_guard(None) if guarded else None
    if where == "at its end":
        if guard:
            around(guard, "finish", lambda: late.here())
        else:
            before_the_release(monkeypatch, lambda _: late.here())
    late = Late(room, room.task(work, acks_late=True, guard=guard), row)
    late.is_late()
    with pytest.raises(SystemExit):
        room.deliver(late.message, redelivered=True)
    room.work_off()
    assert len(runs) == (2 if guard and where == "at its end" else 3), "the row is done"
    assert not guard or status(row) == "done"


def test_a_late_start_of_a_redelivery_is_no_death(room: Mailroom, row: Job) -> None:
    """The message is a redelivery twice, and may die once."""

    def work(self: Any, job: Any) -> str:
        assert late.goes_on()[0] == "IGNORED"
        return "done"

    with at_grants(lambda: late.here()):
        task = room.task(work, acks_late=True, guard=job_guard(), lock_max_attempts=1)
        late = Late(room, task, row, redelivered=True)
        late.is_late()
        assert room.deliver(late.message, redelivered=True) == ("SUCCESS", "done")


def test_a_late_run_whose_row_another_message_has_says_that_its_lease_is_lost(
    room: Mailroom, row: Job
) -> None:
    def work(self: Any, job: Any) -> str:
        if not late.here():
            with pytest.raises(LeaseLost):
                raise late.goes_on()[1]
        return "done"

    task = room.task(work, acks_late=True, guard=job_guard())
    late = Late(room, task, row)
    late.is_late()
    task.delay(row.pk)
    assert room.deliver(room.take()) == ("SUCCESS", "done")
    assert status(row) == "done"


def test_a_finished_row_says_that_the_run_counts_though_its_lock_was_cleared(
    room: Mailroom, row: Job
) -> None:
    room.task(lambda self, job: locks.clear(f"job:{job}"), guard=job_guard(None)).delay(row.pk)
    assert room.work_off() == [("SUCCESS", True)]
    assert status(row) == "done"
