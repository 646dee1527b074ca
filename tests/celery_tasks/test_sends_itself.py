"""A job that sends its own next run from its body, which holds the lock until it returns."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.mailroom import Mailroom, elsewhere


def links(room: Mailroom, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[int, Any]:
    """How many runs such a job has that is to have three, each delivered while the one before
    works; and the warnings."""
    ran: list[int] = []
    caplog.set_level(logging.WARNING, "django_tasklock")

    def poll(self: Any, job: int, number: int = 1) -> None:
        ran.append(number)
        if number < 3:
            self.delay(job, number + 1)
            if room.ids():
                elsewhere(room, room.take())

    room.register(poll, bind=True, name="poll", lock_name="job:{job}", **options).delay(1)
    room.work_off()
    return len(ran), caplog.messages


@pytest.mark.parametrize(
    "options",
    [
        {"on_conflict": "retry"},
        {"on_conflict": "coalesce"},
        {"on_conflict": "retry", "unique_while": "queued"},
        {"on_conflict": "coalesce", "unique_while": "queued"},
        {"on_conflict": "run"},
        {"debounce": 0.001},
    ],
)
def test_it_goes_on_where_a_refused_message_waits(
    room: Mailroom, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    # Given a job whose next message finds the lock held by the run that has sent it
    ran, warned = links(room, caplog, **options)

    # I expect it to run all the same, and nobody to be told to change anything
    assert ran == 3
    assert not [text for text in warned if "on_conflict=" in text]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the run that sent it holds the lock job:1, and nothing goes on with it"),
        ({"unique_while": "queued"}, "the run that sent it holds the lock job:1"),
        ({"unique_while": "unfinished"}, "was not sent, and nothing goes on with it, lock job:1"),
        (
            {"unique_while": "unfinished", "on_conflict": "retry"},
            'Use unique_while="queued" with on_conflict="retry" or "coalesce"',
        ),
    ],
)
def test_it_ends_elsewhere_with_a_warning_that_has_the_mend(
    room: Mailroom, caplog: pytest.LogCaptureFixture, options: dict[str, Any], said: str
) -> None:
    ran, (text,) = links(room, caplog, **options)
    assert (ran, said in text) == (1, True), text


def test_a_duplicate_of_another_call_is_no_warning(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    def work(self: Any, job: int) -> None:
        elsewhere(room, room.take())  # Sent before, by nobody's run.

    task, unique = room.task(work), room.task(unique_while="queued")
    for _ in range(2):
        task.delay(1)
    room.deliver(room.take())
    for _ in range(2):
        unique.delay(2)
    assert len(room.ids()) == 1
    assert caplog.messages == []
