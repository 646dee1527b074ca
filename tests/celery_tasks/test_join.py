"""on_conflict="join", message by message. With workers: ``tests/hard_cases``."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.exceptions import Ignore

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock.signals import lock_contended, task_not_run
from tests.celery_tasks.conftest import HOW, call, has_reserved_nothing, raising, retries_once
from tests.mailroom import Mailroom, Runs, elsewhere, killed_in_body
from tests.steps import LONG, holder, sent

LOOKS = 3
"""how often a message looks again for a result that is missing while nobody has the lock"""


def meets(room: Mailroom, *results: Any) -> None:
    """Deliver the messages of calls while their lock is held: they go back to their queue."""
    for each in results:
        assert elsewhere(room, room.take(each.id))[0] == "IGNORED"


def joining(room: Mailroom, *ends: Any, **options: Any) -> tuple[Any, Runs]:
    """A task whose first run is met by two other calls, and then ends as ``ends`` says; the next
    ones as well. By default a run returns its own task id."""

    def first(self: Any, job: Any) -> Any:
        meets(room, *[task.delay(job) for _ in range(2)])
        return then(self, job)

    def own_id(self: Any, job: Any) -> Any:
        return self.request.id

    then, *later = ends or (own_id,)
    runs = Runs(first, *later, own_id)
    task = room.task(runs, on_conflict="join", **options)
    return task, runs


def test_all_that_meet_a_run_return_what_it_returns(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    # Given two calls that find the lock of a run held
    caplog.set_level(logging.INFO, "django_tasklock")
    task, runs = joining(room, lambda self, job: {"video": job, "parts": (1, 2), "none": None})
    with sent(task_not_run) as told:
        first = task.delay(1)
        room.deliver(room.take())
        others = room.ids()

        # I expect them to return its value, as the result backend has it
        value = {"video": 1, "parts": [1, 2], "none": None}
        assert room.work_off() == [("SUCCESS", value)] * 2
        assert runs == [first.id]

    # And a signal and a log line of each
    outcomes = [(one["task_id"], one["outcome"], one["reason"]) for one in told]
    assert outcomes == [
        *[(other, "requeued", "held") for other in others],
        *[(other, "joined", "result") for other in others],
    ]
    for other in others:
        said = f"{task.name}[{other}] returns what {first.id} does, lock job:1"
        assert said in caplog.messages
    assert not locks.is_locked("job:1")


def test_a_message_that_waits_for_a_result_does_not_ask_for_the_lock(room: Mailroom) -> None:
    """It would get the lock between the release and the stored result."""

    def looks_often(self: Any, job: Any) -> None:
        with sent(lock_contended) as told:
            for other in room.ids() * 3:
                assert elsewhere(room, room.take(other))[0] == "IGNORED"
        assert told == []

    task, runs = joining(room, looks_often)
    task.delay(1)
    assert room.work_off() == [("SUCCESS", None)] * 3
    assert len(runs) == 1


@pytest.mark.parametrize("how", ["raises", "is revoked", "keeps no result", "lost its result"])
def test_if_there_is_no_result_one_runs_and_the_other_returns_what_that_does(
    room: Mailroom, how: str
) -> None:
    def ends(self: Any, job: Any) -> None:
        if how == "raises":
            raise LookupError
        if how == "is revoked":
            room.app.backend.mark_as_revoked(self.request.id, "terminated")
            raise Ignore

    def is_met(self: Any, job: Any) -> str:
        meets(room, *[task.AsyncResult(other) for other in room.ids()])
        return "from the second run"

    task, runs = joining(room, ends, is_met)
    first = task.apply_async([1], ignore_result=how == "keeps no result")
    room.deliver(room.take())
    room.app.backend.forget(first.id) if how == "lost its result" else None
    second, third = room.ids()
    # A result that is missing may just be being stored: they look again before one runs.
    for each in (second, third) * (LOOKS if "result" in how else 0):
        assert room.deliver(room.take(each))[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", "from the second run")] * 2
    assert runs == [first.id, second]


def test_a_run_that_died_is_replaced_by_one_that_takes_its_lock_over(room: Mailroom) -> None:
    """But not at once: its own message may come back."""
    task, runs = joining(room)
    first, other = task.delay(1), task.delay(1)
    message, waits = room.take(first.id), room.take(other.id)
    killed_in_body(room, message)
    waits.ours["joined"] = [first.id, 0, 0]
    assert holder("job:1").owner.task_id == first.id
    assert room.deliver(waits)[0] == "IGNORED"
    for _ in range(LOOKS - 1):
        meets(room, other)
    assert room.deliver(room.take(other.id))[0] == "SUCCESS"
    assert runs[0] == other.id


def test_while_the_result_backend_is_silent_a_message_waits(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise ConnectionError("no answer")

    task, runs = joining(room)
    first = task.delay(1)
    room.deliver(room.take())
    with monkeypatch.context() as patched:
        patched.setattr(type(room.app.backend), "get_task_meta", silent)
        for other in room.ids() * (LOOKS + 1):
            assert room.deliver(room.take(other))[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", first.id)] * 2
    assert runs == [first.id]


def test_a_result_of_an_earlier_use_of_the_task_id_is_not_returned(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, runs = joining(room, lambda self, job: "new")
    with monkeypatch.context() as patched:
        before = datetime.now(timezone.utc) - timedelta(hours=1)
        patched.setattr(room.app, "now", lambda: before)
        room.app.backend.store_result("again", "old", "SUCCESS")
    task.apply_async([1], task_id="again")
    room.deliver(room.take())
    others = room.ids()
    outcomes = [value for state, value in room.work_off() if state == "SUCCESS"]
    assert sorted(outcomes) == sorted(others), "the backend keeps the old result, so both have run"
    assert len(runs) == 3


@pytest.mark.parametrize("backend", [None, "tests.overwriting_backend:OverwritingBackend"])
def test_without_a_result_backend_all_run_and_any_that_keeps_results_will_do(
    room: Mailroom, backend: str | None
) -> None:
    """Also one that lets STARTED overwrite a success, as that of django-celery-results."""
    room.app.conf.update(result_backend=backend, task_track_started=True)
    task, runs = joining(room)
    task.delay(1)
    assert room.states() == ["SUCCESS"] * 3
    assert len(runs) == (1 if backend else 3)


@HOW
def test_a_direct_or_eager_call_has_no_queue_in_which_it_could_wait(
    room: Mailroom, how: str
) -> None:
    task, _ = joining(room)
    with lock("job:1", ttl=LONG), pytest.raises(LockNotAcquired):
        call(task, how, 1)


@pytest.mark.parametrize("other", ["code", "another task", "a direct call in a run"])
def test_it_waits_for_a_holder_that_is_no_run_of_its_task_for_as_long_as_it_takes(
    room: Mailroom, other: str
) -> None:
    def work(self: Any, job: Any) -> Any:
        if job == "around":
            task(1)  # Its value is not that of the run around it, whose task id it has.
        elif len(waits) == 1:
            meets(room, *waits * 3)
            waits.clear()
        return job

    task = room.task(work, on_conflict="join", lock_retry_for=0)
    waits = [task.delay(1)]
    if other == "code":
        with lock("job:1", ttl=LONG):
            work(None, 1)
    else:
        another = room.task(lambda self, job: [work(self, job)])
        first = another.delay(1) if other == "another task" else task.delay("around")
        assert room.deliver(room.take(first.id))[0] == "SUCCESS"
    assert room.work_off() == [("SUCCESS", 1)]


def test_the_last_one_of_debounced_calls_runs_itself(room: Mailroom) -> None:
    """Those that it has replaced rely on a run that starts after them."""

    def first(self: Any, job: Any) -> None:
        meets(room, task.delay(1))

    runs = Runs(first, None)
    task = room.task(runs, on_conflict="join", debounce=0.001)
    task.delay(1)
    assert room.states() == ["SUCCESS"] * 2
    assert len(runs) == 2


def test_within_a_cooldown_a_call_returns_what_the_last_run_returned(room: Mailroom) -> None:
    task, runs = joining(room, lock_cooldown=LONG)
    first = task.delay(1)
    room.work_off()
    later = task.delay(1)
    assert room.states() == ["IGNORED", "SUCCESS"]
    assert room.app.AsyncResult(later.id).get() == first.id
    assert runs == [first.id]


def test_a_hold_comes_between_and_the_result_is_still_that_of_the_run(room: Mailroom) -> None:
    task, runs = joining(room)
    first = task.delay(1)
    room.deliver(room.take())
    assert locks.hold("job:1", LONG, "alice", "a migration")
    assert room.work_off() == [("SUCCESS", first.id)] * 2
    assert runs == [first.id]


def test_redeliveries_of_the_run_and_of_those_that_joined_it_do_nothing(room: Mailroom) -> None:
    def delivered_again(self: Any, job: Any) -> str:
        assert elsewhere(room, message, redelivered=True)[0] == "IGNORED"
        return "once"

    task, runs = joining(room, delivered_again, acks_late=True)
    task.delay(1)
    message = room.take()
    room.deliver(message)
    waiting = [each for each in room.waiting() if each.id != message.id]
    assert [value for state, value in room.work_off() if state == "SUCCESS"] == ["once"] * 2
    for each in (message, *waiting):
        assert room.deliver(each, redelivered=True)[0] == "IGNORED"
    assert runs == [message.id]


def test_those_that_met_a_run_wait_for_its_retry(room: Mailroom) -> None:
    def tries_again(self: Any, job: Any) -> Any:
        if not self.request.retries:
            task.delay(job)
            elsewhere(room, room.take())
            self.retry(countdown=0)
        return self.request.id

    runs = Runs(tries_again)
    task = room.task(runs, on_conflict="join")
    first = task.delay(1)
    room.deliver(room.take())
    (joined,) = [each for each in room.ids() if each != first.id]
    for _ in range(6):
        assert room.deliver(room.take(joined))[0] == "IGNORED"
    assert room.deliver(room.take(first.id)) == ("SUCCESS", first.id)
    assert room.deliver(room.take(joined)) == ("SUCCESS", first.id)
    assert runs == [first.id] * 2


def test_a_retry_of_a_call_that_had_joined_a_run_does_not_look_for_its_result(
    room: Mailroom,
) -> None:
    task, runs = joining(room, raising(LookupError()), retries_once)
    task.delay(1)
    room.deliver(room.take())
    assert [room.deliver(room.take())[0] for _ in range(2)] == ["RETRY", "SUCCESS"]
    (retry,) = room.waiting()
    assert "joined" not in retry.ours
    assert room.work_off() == [("SUCCESS", retry.id)]
    assert runs[1:] == [retry.id, runs[2], retry.id]


@pytest.mark.parametrize("while_", ["queued", "unfinished"])
def test_a_duplicate_has_the_result_of_the_message_that_is_there(
    room: Mailroom, while_: str
) -> None:
    """And one that joins a run ends what it has reserved."""
    sent_twice: list[Any] = []

    def duplicates(self: Any, job: Any) -> str:
        sent_twice.append(task.delay(job))
        meets(room, *[task.AsyncResult(waiting) for waiting in room.ids()])
        sent_twice.append(task.delay(job))
        return "once"

    runs = Runs(duplicates)
    task = room.task(runs, on_conflict="join", unique_while=while_)
    first = task.delay(1)
    room.deliver(room.take())
    second, third = sent_twice
    assert second.id == third.id
    assert (second.id == first.id) is (while_ == "unfinished")
    assert room.work_off() == [("SUCCESS", "once")] * (while_ == "queued")
    assert runs == [first.id]
    assert has_reserved_nothing(task, "job:1")
