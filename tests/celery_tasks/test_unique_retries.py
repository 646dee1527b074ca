"""A message that waits (``unique_while``) beside a retry, or that is gone: no call is lost.

As the doctor finds one that is gone: ``tests/operators/test_doctor.py``; with workers:
``tests/hard_cases``.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import states
from celery.exceptions import Retry

from django_tasklock import lock
from django_tasklock.stores import stores
from django_tasklock.testing import outage
from tests.findings import thrown_away
from tests.mailroom import Mailroom, Runs, coalesced, elsewhere
from tests.proxy import CutProxy
from tests.seeds import drawn_seed
from tests.steps import LONG


def retrying(room: Mailroom, **options: Any) -> tuple[Any, list[str]]:
    """A task whose first run is called once more, and retries; and the id of that call."""
    called: list[str] = []

    def work(self: Any, job: Any) -> str:
        if not called:
            called.append(self.delay(job).id)
            raise self.retry(countdown=0)
        return f"done:{job}"

    return room.task(work, **{"unique_while": "queued", **options}), called


def test_a_retry_takes_over_the_reservation_of_the_message_that_waits(room: Mailroom) -> None:
    # Given a message that waits beside a run, which retries
    task, called = retrying(room)
    first = task.delay(1).id
    assert room.deliver(room.take())[0] == "RETRY"
    assert room.ids() == [*called, first]

    # I expect the retry to be the one that waits, and the other to leave the job to it
    assert task.delay(1).id == first
    assert coalesced(room.deliver(room.take(called[0]))) == first
    assert task.delay(1).id == first
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_a_retry_that_may_expire_takes_nothing_over(room: Mailroom) -> None:
    """Else nobody might run: the message that waits would have left its job to the retry."""
    task, called = retrying(room)
    task.apply_async([1], expires=LONG)
    assert room.deliver(room.take())[0] == "RETRY"
    assert task.delay(1).id == called[0]
    assert room.work_off() == [("SUCCESS", "done:1")] * 2


@pytest.mark.parametrize("conflict", ["skip", "raise", "retry", "coalesce"])
def test_a_retry_that_meets_the_one_it_replaces_runs(
    room: Mailroom, conflict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is delivered while the other is. Neither leaves the job to one that leaves it."""
    task, called = retrying(room, on_conflict=conflict)
    first = task.delay(1).id
    room.deliver(room.take())
    store: Any = stores["default"]
    read, met = store.get_note, list[Any]()

    def meets(key: str) -> Any:
        found = read(key)
        if found == first and not met:
            met.append("delivered")
            met.append(elsewhere(room, room.take(first)))
        return found

    monkeypatch.setattr(store, "get_note", meets)
    assert coalesced(room.deliver(room.take(called[0]))) == first
    assert [*met[1:], *room.work_off()] == [("SUCCESS", "done:1")]


@pytest.mark.parametrize("silent", [False, True], ids=["", "it has met an outage"])
def test_a_follow_up_is_not_skipped_for_a_retry_that_leaves_it_the_job(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    def first_run(self: Any, job: Any) -> None:
        followed.append(self.delay(job).id)
        elsewhere(room, room.take(followed[0]))
        raise self.retry(countdown=0)

    # Given a follow-up, and a retry that has taken over its reservation
    followed: list[str] = []
    runs = Runs(first_run, None)
    task = room.task(runs, unique_while="queued", on_conflict="coalesce")
    first = task.delay(1).id
    assert room.deliver(room.take())[0] == "RETRY"
    if silent:
        with outage():
            assert room.deliver(room.take(followed[0]))[0] == "IGNORED"

    # When it is delivered before the retry, which is skipped for it, has ended the reservation
    store: Any = stores["default"]
    real, met = store.unreserve, list[str]()

    def meets(key: str, text: str) -> Any:
        if text == first and not met:
            met.append(elsewhere(room, room.take(followed[0]))[0])
        return real(key, text)

    monkeypatch.setattr(store, "unreserve", meets)
    with lock("job:1", ttl=LONG):
        assert room.deliver(room.take(first))[1]["reason"] == "coalesced"
    assert met == ["IGNORED"]
    assert room.work_off() == [("SUCCESS", None)]


def test_what_a_retry_has_reserved_stays_when_the_main_process_hears_of_it(room: Mailroom) -> None:
    """Of a retry for an error, as with ``autoretry_for``: that is not how its message has ended."""
    task, _ = retrying(room)
    first = task.delay(1).id
    request = room.received(message := room.take())
    assert room.deliver(message)[0] == "RETRY"
    try:
        raise Retry(exc=LookupError())
    except Retry:
        request.on_failure(pickle.loads(pickle.dumps(ExceptionInfo())))  # From the pool's child.
    assert task.delay(1).id == first


@pytest.mark.parametrize("how", ["send_anyway", "by name", "lapsed", "redelivered"])
def test_a_message_that_left_nothing_to_another_runs(room: Mailroom, how: str) -> None:
    task = room.task(unique_while="queued", acks_late=True)
    match how:
        case "send_anyway":
            first = task.send_anyway([1]).id
        case "by name":
            first = room.app.send_task(task.name, [1]).id
        case _:
            first = task.delay(1).id
            (reservation,) = stores["default"].reservations()
            stores["default"].unreserve(reservation.key, first)
    if how != "lapsed":
        assert task.delay(1).id != first
    redelivered = how == "redelivered"
    assert room.deliver(room.take(first), redelivered=redelivered) == ("SUCCESS", "done:1")


def test_a_retry_of_an_unfinished_job_is_the_one_message(room: Mailroom) -> None:
    def again(self: Any, job: Any) -> None:
        assert self.delay(job).id == self.request.id
        raise self.retry(countdown=0)

    task = room.task(Runs(again, again, None), unique_while="unfinished")
    first = task.delay(1).id
    for _ in range(2):
        assert room.deliver(room.take())[0] == "RETRY"
        assert task.delay(1).id == first
        assert room.ids() == [first]
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert task.delay(1).id != first


class Calls:
    """A job that is called at random, also while it runs; its runs fail, retry or succeed."""

    def __init__(self, room: Mailroom, chance: random.Random, conflict: str) -> None:
        self.room, self.chance = room, chance
        self.task = room.task(self.work, unique_while="queued", on_conflict=conflict)
        self.calls = self.seen = self.most = 0

    def call(self) -> None:
        """Call it once more; what is refused relies on a run that starts later."""
        self.calls += 1
        self.task.delay(1)

    def work(self, task: Any, job: Any) -> None:
        """The body: it sees the calls up to now."""
        self.seen = self.calls
        for _ in range(self.chance.randrange(4)):
            self.act(lambda: elsewhere(self.room, self.room.take()))
        match self.chance.randrange(4):
            case 0 | 1 if self.calls < 20:
                raise task.retry(countdown=0, max_retries=None)
            case 2:
                raise LookupError

    def act(self, deliver: Callable[[], object]) -> None:
        """A call, or a delivery of the oldest message."""
        if self.room.waiting() and self.chance.random() < 0.6:
            deliver()
        elif self.calls < 20:
            self.call()
        self.most = max(self.most, len(self.room.waiting()))


@pytest.mark.parametrize("conflict", ["retry", "coalesce"])
def test_whatever_comes_in_between_one_waits_and_no_call_is_lost(
    room: Mailroom, conflict: str
) -> None:
    seed = drawn_seed()
    for number in range(8):
        chance = random.Random(f"{seed}-{number}")
        job = Calls(room, chance, conflict)
        while job.calls < 20 or room.waiting():
            job.act(lambda: room.deliver(room.take()))
        assert job.seen == job.calls == 20, f"round {number}"
        # One that runs is in no queue; one may have been taken over, and not delivered since.
        assert job.most <= 2, f"round {number}"


# ------------------------------------------------------------------------------ gone


@pytest.mark.parametrize("mode", ["queued", "unfinished"])
def test_the_next_call_takes_the_place_of_a_message_that_has_ended(
    room: Mailroom, mode: str
) -> None:
    # Given a message that a worker threw away, so that it will never run
    task = room.task(unique_while=mode)
    thrown_away(room, task.delay(1).id)

    # I expect the next call to be sent
    following = task.delay(1).id
    assert room.ids() == [following]

    # And the call after it to be its duplicate
    assert task.delay(1).id == following
    assert room.work_off() == [("SUCCESS", "done:1")]


@pytest.mark.parametrize("state", [states.PENDING, states.STARTED, states.RETRY])
def test_a_message_that_has_not_ended_keeps_its_place(room: Mailroom, state: str) -> None:
    task = room.task(unique_while="queued")
    first = task.delay(1).id
    room.app.backend.store_result(first, None, state)
    assert task.delay(1).id == first


@pytest.mark.parametrize("options", [{"ignore_result": True}, {"task_id": "daily"}])
def test_a_stored_result_that_may_be_of_another_message_is_not_believed(
    room: Mailroom, options: dict[str, object]
) -> None:
    """A task id that Celery did not draw is used again, and a task without results has none."""
    ignored = options.pop("ignore_result", False)
    task = room.task(unique_while="queued", ignore_result=ignored)
    first = task.apply_async([1], **options).id
    room.app.backend.store_result(first, None, states.SUCCESS)
    assert task.delay(1).id == first
    assert room.ids() == [first]


@pytest.mark.parametrize("state", [states.SUCCESS, states.FAILURE])
def test_a_result_of_the_run_that_has_sent_the_waiting_retry_is_not_believed(
    room: Mailroom, state: str
) -> None:
    """``retry(throw=False)``: the body goes on, and its result has the task id of the retry."""

    def work(self: Any, _job: Any) -> str:
        if self.request.retries == 0:
            self.retry(countdown=0, throw=False)
            if state == states.FAILURE:
                raise ValueError("the body goes on, and fails")
        return "done"

    task = room.task(work, unique_while="queued")
    first = task.delay(1).id
    assert room.deliver(room.take())[0] == state
    assert task.AsyncResult(first).state == state
    assert task.delay(1).id == first
    assert room.work_off() == [("SUCCESS", "done")]
    assert task.delay(1).id != first


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_a_result_backend_that_does_not_answer_changes_nothing(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    task = room.task(unique_while="queued")
    with room.results_on(cut_proxy.url):
        first = task.delay(1).id
        thrown_away(room, first)
        with cut_proxy.away():
            assert task.delay(1).id == first
        assert task.delay(1).id != first


def test_a_message_that_comes_after_all_leaves_the_job_to_the_one_in_its_place(
    room: Mailroom,
) -> None:
    task = room.task(unique_while="queued")
    first = task.delay(1).id
    room.app.backend.store_result(first, None, states.FAILURE)
    following = task.delay(1).id
    assert coalesced(room.deliver(room.take(first))) == following
    assert room.work_off() == [("SUCCESS", "done:1")]
