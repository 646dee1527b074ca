"""A reservation whose message is gone (``unique_while``), as the next call finds it.

As the doctor finds it: ``tests/operators/test_doctor.py``, and with workers
``tests/hard_cases``.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import states

from tests.findings import thrown_away
from tests.mailroom import Mailroom, coalesced
from tests.proxy import CutProxy


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
