"""What goes back to its queue, or goes on in another message, and a broker that does not take it.

The job is not lost: nothing is acknowledged before its successor is sent. With real workers and
quorum queues: ``tests/hard_cases/test_requeues.py``.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError

from django_tasklock import RequeueFailed, lock, locks
from django_tasklock.stores.base import Note
from tests.app.models import Job
from tests.celery_tasks.conftest import FENCES, away, call, job_guard, pauses, raising, status
from tests.inside import held_for
from tests.mailroom import Mailroom, Message, elsewhere
from tests.proxy import CutProxy
from tests.steps import LONG, Meanwhile, taken
from tests.waiting import until

LIMIT_SECONDS = 0.3


@pytest.fixture
def limited() -> Iterator[None]:
    """A time limit, as the worker's main process tells it to a child: by a signal, once."""

    def too_long(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGALRM, too_long)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(room: Mailroom, **options: Any) -> tuple[Message, Any]:
    """A message whose lock is held, and the lease that holds it."""
    lease = Meanwhile(lambda: taken("job:1")).result()
    room.task(**{"on_conflict": "retry", **options}).delay(1)
    return room.take(), lease


def limit_comes(where: str, broker: CutProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes no message until then, and takes them again afterwards."""
    if where == "while it is sent":
        broker.pause()
        signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
        pauses(monkeypatch, broker.resume)
        return

    def too_long() -> None:
        broker.accept()
        raise SoftTimeLimitExceeded

    away(broker)
    pauses(monkeypatch, too_long)


def assert_rejected(outcome: tuple[str, Any]) -> None:
    """The broker is to deliver the message again."""
    state, error = outcome
    assert (state, isinstance(error, Reject)) == ("REJECTED", True)
    assert error.requeue


WHERE = pytest.mark.parametrize("where", ["in the pause", "while it is sent"])


@pytest.mark.parametrize("how", ["acks_late", "acks_late, counted", ""])
@WHERE
def test_a_message_that_the_broker_does_not_take_is_not_lost(
    room: Mailroom, broker: CutProxy, monkeypatch: pytest.MonkeyPatch, limited: None, where: str,
    how: str,
) -> None:  # fmt: skip
    # Given a message whose lock is held, and a broker that takes none until a soft time limit comes
    message, lease = refused(room, acks_late=bool(how))
    if "counted" in how:  # A queue with ``x-delivery-limit`` would drop it.
        message.headers["x-delivery-count"] = 5
    limit_comes(where, broker, monkeypatch)
    outcome = room.deliver(message)
    lease.release()
    if how == "acks_late":
        # I expect the broker to deliver the message again
        assert_rejected(outcome)
        assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")
        return
    # And, if it has the message no more, or counts, to get it anew: perhaps twice, as after other
    # lost replies
    assert outcome[0] == "IGNORED"
    until(room.waiting, "the message")
    first, *again = room.work_off()
    assert first == ("SUCCESS", "done:1")
    assert {state for state, _ in again} <= {"IGNORED" if how else "SUCCESS"}


def test_a_requeued_message_is_the_same_but_for_what_the_broker_has_counted(room: Mailroom) -> None:
    """It keeps its parent, None too, and what was said of it when it was sent."""
    for parent in (None, "of-the-caller"):
        message, lease = refused(room)
        hidden = {"argsrepr": "(<hidden>)", "kwargsrepr": "{}", "mine": "kept", "retries": 3}
        hidden |= {"ignore_result": True}
        told = {"parent_id": parent, "root_id": parent or message.id, **hidden}
        message.headers.update(told, **{"x-delivery-count": 1, "x-death": [{"queue": "other"}]})
        assert room.deliver(message)[0] == "IGNORED"
        anew = room.take(message.id)
        assert {name: anew.headers.get(name) for name in told} == told
        assert (anew.args, anew.ours["sent"]) == (message.args, message.ours["sent"])
        assert anew.headers.keys().isdisjoint({"x-delivery-count", "x-death"})
        lease.release()


def test_a_message_that_comes_back_leaves_few_frames(room: Mailroom) -> None:
    """Celery copies and formats each of them twice, for each message that waits."""
    message, _lease = refused(room)
    state, error = room.deliver(message)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert (state, frames) == ("IGNORED", ["trace_task", "__call__", "__call__"])


@pytest.mark.parametrize("how", ["acks_late", "acks_late, counted", ""])
def test_a_message_that_cannot_be_written_again_is_not_lost(room: Mailroom, how: str) -> None:
    """The broker has it still; or it has failed, and nobody is told that it will run."""
    task = room.task(on_conflict="retry", acks_late=bool(how), unique_while="queued")
    task.apply_async([1], task_id="it")
    message = replace(room.take(), kwargs={"other": object()})
    message.headers["x-delivery-count"] = 5 if "counted" in how else 0
    with lock("job:1", ttl=LONG):
        state, error = room.deliver(message)
    duplicate = task.delay(1).id
    if how == "acks_late":
        assert_rejected((state, error))
        assert duplicate == "it"
        assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")
        assert room.waiting() == []
    else:
        assert (state, type(error)) == ("FAILURE", RequeueFailed)
        assert "will not run: Object of type object is not JSON serializable" in str(error)
        # In its place another one is sent.
        assert room.ids() == [duplicate] != ["it"]
        assert room.work_off() == [("SUCCESS", "done:1")]


# ------------------------------------------------------------------------------ successors


@pytest.mark.parametrize("limit", [False, True], ids=["", "a soft limit comes"])
@pytest.mark.parametrize("how", ["retries", "is retried", "is replaced"])
def test_a_run_whose_successor_is_not_taken_is_repeated(
    room: Mailroom,
    row: Job,
    broker: CutProxy,
    monkeypatch: pytest.MonkeyPatch,
    limited: None,
    how: str,
    limit: bool,
) -> None:
    """Its start does not count as a death, and its row waits."""
    starts: list[int] = []
    other = room.task(acks_late=True, lock_name="other:{job}")

    def work(self: Any, job: int) -> str:
        starts.append(self.request.retries)
        if len(starts) > 1:
            return "done"
        limit_comes("while it is sent" if limit else "in the pause", broker, monkeypatch)
        if how == "is retried":
            raise LookupError
        raise self.retry(countdown=0) if how == "retries" else self.replace(other.s(job))

    options = {"autoretry_for": (LookupError,), "default_retry_delay": 0}
    task = room.task(work, acks_late=True, guard=job_guard(), lock_max_attempts=1, **options)
    task.delay(row.pk)
    message = room.take()
    assert_rejected(room.deliver(message))
    assert (status(row), locks.is_locked(f"job:{row.pk}")) == ("queued", False)
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done")
    assert (status(row), starts) == ("done", [0, 0])


@FENCES
def test_a_counted_message_of_a_run_that_cannot_go_on_is_sent_anew(
    room: Mailroom, row: Job, broker: CutProxy, monkeypatch: pytest.MonkeyPatch, fence: str | None
) -> None:
    starts: list[int] = []

    def work(self: Any, job: int) -> str:
        starts.append(self.request.retries)
        if len(starts) > 1:
            return "done"
        away(broker)
        pauses(monkeypatch, broker.accept)
        raise self.retry(countdown=0)

    guard = job_guard(fence)
    message = room.message(work, row.pk, acks_late=True, lock_max_attempts=1, guard=guard)
    message.headers["x-delivery-count"] = 1
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", "done")]
    assert (starts, status(row)) == ([0, 0], "done")


def test_a_replacement_that_was_sent_all_the_same_keeps_the_row(
    room: Mailroom, row: Job, broker: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a fence its claim looks as that of the run that sent it."""
    guard = job_guard(None)
    other = room.task(acks_late=True, lock_name="other:{job}")

    def work(self: Any, job: int) -> None:
        broker.drop_reply(b"LPUSH")
        pauses(monkeypatch, lambda: claimed.append(guard.claim(row.pk)))
        raise self.replace(other.s(job))

    claimed: list[bool] = []
    room.task(work, acks_late=True, guard=guard).delay(row.pk)
    assert room.deliver(room.take())[0] == "REJECTED"
    assert (claimed, status(row)) == ([True], "working")


@pytest.mark.parametrize("what", ["cannot be a message", "the broker does not have any more"])
def test_what_cannot_come_back_is_given_up_as_with_any_task(
    room: Mailroom, broker: CutProxy, what: str
) -> None:
    def work(self: Any, job: int) -> None:
        if what == "cannot be a message":
            raise self.retry(args=[object()], countdown=0)
        away(broker)
        raise self.retry(countdown=0)

    lost = what != "cannot be a message"
    room.task(work, acks_late=not lost).delay(1)
    state, error = room.deliver(room.take())
    assert (state, error.requeue) == ("REJECTED", False)
    assert lost or isinstance(error.reason, EncodeError)


def test_what_the_body_raised_after_its_last_retry_is_its_failure(room: Mailroom) -> None:
    """Though it is the error of a broker."""
    body = raising(OperationalError("of another broker, which the body has asked"))
    options = {"autoretry_for": (OperationalError,), "max_retries": 0}
    room.fails(room.message(body, acks_late=True, **options), OperationalError)


@pytest.mark.parametrize("late", [True, False], ids=["acks_late", ""])
@pytest.mark.parametrize("comes", ["after the run", "during the run"])
def test_a_retry_that_does_not_end_its_run_works_on_the_row(
    room: Mailroom, row: Job, comes: str, late: bool
) -> None:
    """``throw=False``: the body goes on, and its result is stored, before the retry has begun."""
    runs: list[tuple[int, str]] = []

    def work(self: Any, job: int) -> str:
        runs.append((self.request.retries, status(row)))
        if self.request.retries == 0:
            self.retry(countdown=0, throw=False)
            if comes == "during the run":
                assert elsewhere(room, room.take())[0] == "IGNORED"
        return f"try {self.request.retries}"

    room.task(work, guard=job_guard(), acks_late=late).delay(row.pk)
    assert room.deliver(room.take()) == ("SUCCESS", "try 0")
    assert status(row) == "queued"
    assert room.work_off()[-1] == ("SUCCESS", "try 1")
    assert (runs, status(row)) == ([(0, "working"), (1, "working")], "done")


def test_a_redelivered_retry_of_a_run_that_went_on_is_not_dropped_for_that_ones_result(
    room: Mailroom, row: Job
) -> None:
    """Nor is the retry of that retry."""

    def work(self: Any, job: int) -> str:
        match self.request.retries:
            case 0:
                self.retry(countdown=0, throw=False)
            case 1:
                raise self.retry(countdown=0)
        return f"try {self.request.retries}"

    room.task(work, guard=job_guard(), acks_late=True).delay(row.pk)
    assert room.deliver(room.take()) == ("SUCCESS", "try 0")
    assert room.deliver(room.take(), redelivered=True)[0] == "RETRY"
    assert room.deliver(room.take(), redelivered=True) == ("SUCCESS", "try 2")
    assert status(row) == "done"


def test_an_eager_retry_that_does_not_end_its_run_is_none(room: Mailroom, row: Job) -> None:
    """Celery sends nothing then, so the row does not wait for it."""

    def work(self: Any, job: int) -> str:
        self.retry(countdown=0, throw=False)
        return "done"

    assert call(room.task(work, guard=job_guard()), "eagerly", row.pk) == "done"
    assert status(row) == "done"


# ------------------------------------------------------------------------------ turns


@pytest.mark.parametrize(
    ("last", "held", "on_conflict", "seconds"),
    [
        pytest.param(3.0, 1.2, "retry", 4.5, id="a step after the last turn"),
        pytest.param(14.0, 2.0, "retry", None, id="without a turn, asks again later"),
        pytest.param(0.0, 60.0, "coalesce", 2.0, id="a follow-up asks sooner"),
    ],
)
def test_a_refused_message_takes_its_turn(
    room: Mailroom,
    monkeypatch: pytest.MonkeyPatch,
    last: float,
    held: float,
    on_conflict: str,
    seconds: float | None,
) -> None:
    """As ``tests/celery_tasks/test_bursts.py`` says."""
    message, _lease = refused(room, on_conflict=on_conflict)
    store, now = locks.store, time.time()
    held_for(monkeypatch, held)
    if last:
        store.set_note(Note("turn job:1", repr(now + last), 60))
    assert room.deliver(message)[0] == "IGNORED"
    later = datetime.fromisoformat(room.take().headers["eta"]).timestamp() - now
    assert later == pytest.approx(seconds, abs=0.3) if seconds else 11 <= later <= 19
    turn = store.get_note("turn job:1")
    assert (turn == repr(now + last)) is (seconds is None), "it has taken its turn"


def test_messages_that_are_refused_at_once_get_a_turn_each(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though both would write the same moment."""
    first, _lease = refused(room)
    room.task(on_conflict="retry").delay(1)
    second = room.take()
    held_for(monkeypatch, 0.01)
    store: Any = locks.store
    before = time.time() + 3
    store.set_note(Note("turn job:1", repr(before), LONG))
    put = store.put

    def meets(changes: Any, *more: Any) -> Any:
        if changes[0].name == " turn job:1":
            monkeypatch.setattr(store, "put", put)
            assert elsewhere(room, second)[0] == "IGNORED"
        return put(changes, *more)

    monkeypatch.setattr(store, "put", meets)
    assert room.deliver(first)[0] == "IGNORED"
    last, *_ = store.get_note("turn job:1").split()
    assert float(last) - before == pytest.approx(2 * 0.25, abs=0.001)
