"""on_conflict=function: a function of the project decides, at each refusal."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import LockInfo, LockNotAcquired, lock
from tests.mailroom import Mailroom, Runs, elsewhere
from tests.steps import LONG, taken

ANSWERS = {"skip": "SUCCESS", "retry": "IGNORED", "raise": "FAILURE", "run": "SUCCESS"}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_call_does_what_the_function_says(room: Mailroom, answer: str) -> None:
    asked: list[Any] = []

    def decide(holder: LockInfo, job: Any) -> str:
        asked.append((holder.name, holder.token, job))
        return answer

    runs = Runs()
    message = room.message(runs, on_conflict=decide)
    with lock("job:1", ttl=LONG) as lease:
        state, result = room.deliver(message)
    assert asked == [("job:1", lease.token, 1)]
    assert state == ANSWERS[answer]
    assert runs == ([message.id] if answer == "run" else [])
    assert isinstance(result, LockNotAcquired) is (answer == "raise")
    assert room.ids() == ([message.id] if answer == "retry" else [])
    if answer == "skip":
        assert result["reason"] == "already_processing"


def test_it_is_asked_at_each_refusal_and_not_for_a_free_lock(room: Mailroom) -> None:
    answers = iter(["retry", "retry", "skip"])
    runs = Runs()
    message = room.message(runs, on_conflict=lambda holder, **_: next(answers))
    with lock("job:1", ttl=LONG):
        for _ in range(2):
            assert room.deliver(message)[0] == "IGNORED"
            message = room.take()
        assert room.deliver(message)[1]["status"] == "skipped"
    room.deliver(room.message(runs, on_conflict=lambda holder: 1 / 0))
    assert len(runs) == 1


def test_it_gets_the_arguments_that_it_takes_with_their_defaults(room: Mailroom) -> None:
    given: list[Any] = []

    def some(holder: LockInfo, other: Any) -> str:
        given.append(other)
        return "skip"

    def all_of_them(holder: LockInfo, **arguments: Any) -> str:
        given.append(arguments)
        return "skip"

    taken("job:1")
    for decide in (some, all_of_them):
        room.task(on_conflict=decide)(1)
    assert given == [None, {"job": 1, "other": None}]


def test_a_redelivery_waits_for_its_own_run_whatever_it_would_say(room: Mailroom) -> None:
    seen: list[Any] = []

    def work(self: Any, job: Any) -> str:
        seen.append(elsewhere(room, message, redelivered=True)[0])
        return "done"

    message = room.message(work, on_conflict=lambda holder: 1 / 0, acks_late=True)
    assert room.deliver(message) == ("SUCCESS", "done")
    assert (seen, room.ids()) == (["IGNORED"], [message.id])


@pytest.mark.parametrize("answer", ["skip", "retry"])
def test_a_message_keeps_what_it_has_reserved_for_as_long_as_it_waits(
    room: Mailroom, answer: str
) -> None:
    task = room.task(on_conflict=lambda holder: answer, unique_while="queued")
    first = task.delay(1)
    with lock("job:1", ttl=LONG):
        room.deliver(room.take())
        assert (task.delay(1).id == first.id) is (answer == "retry")


def broken(holder: LockInfo) -> str:
    raise KeyError("of my own")


@pytest.mark.parametrize(
    ("decide", "error", "said"),
    [
        (broken, KeyError, "of my own"),
        (lambda holder: "coalesce", ValueError, "must return one of 'skip', .*, not 'coalesce'"),
        (lambda holder: None, ValueError, "must return one of .*, not None"),
    ],
)
def test_what_it_raises_or_returns_wrongly_fails_the_task(
    room: Mailroom, decide: Any, error: type[Exception], said: str
) -> None:
    runs = Runs()
    message = room.message(runs, on_conflict=decide, acks_late=True)
    taken("job:1")
    state, raised = room.deliver(message)
    assert state == "FAILURE"
    with pytest.raises(error, match=said):
        raise raised
    assert (runs, room.ids()) == ([], [])


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda: "skip", "called with the holder, job, other by name"),
        (lambda holder, account: "skip", "missing a required argument: 'account'"),
    ],
)
def test_a_function_that_cannot_be_called_is_a_wrong_option(
    room: Mailroom, decide: Any, said: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=said):
        room.task(on_conflict=decide)(1)
