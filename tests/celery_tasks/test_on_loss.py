"""``on_loss="stop"``: a body whose lease is lost ends, as `tests.engine.test_stopping` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_tasklock import LeaseLost, locks
from tests.app.models import Job
from tests.celery_tasks.conftest import FENCES, HOW, MakeTask, call, job_guard, status
from tests.mailroom import Mailroom, Runs
from tests.waiting import until

STOPS: dict[str, Any] = {"on_loss": "stop", "lock_ttl": 0.9}


@pytest.fixture
def goes_on() -> Iterator[Any]:
    """The body of a run that goes on whatever happens, and without a look at its lease."""

    def goes_on(self: Any, job: Any) -> None:
        assert locks.clear(self.lease.name)
        with suppress(Exception):
            until(lambda: False)
        went_on.append(job)

    went_on: list[Any] = []
    yield goes_on
    assert went_on == []


def returns(self: Any, job: Any) -> str:
    return "done"


@FENCES
def test_its_message_comes_back_and_is_done(
    room: Mailroom, row: Job, fence: str | None, goes_on: Any
) -> None:
    room.task(Runs(goes_on, None), acks_late=True, guard=job_guard(fence), **STOPS).delay(row.pk)
    assert room.states() == ["IGNORED", "SUCCESS"]
    assert status(row) == "done"


@FENCES
def test_a_body_that_catches_it_is_not_taken_for_one_that_is_done(
    room: Mailroom, row: Job, fence: str | None, goes_on: Any
) -> None:
    def swallows(self: Any, job: Any) -> str:
        with suppress(BaseException):
            goes_on(self, job)
        return "half done"

    room.task(Runs(swallows, None), acks_late=True, guard=job_guard(fence), **STOPS).delay(row.pk)
    assert room.states() == ["IGNORED", "SUCCESS"]
    assert status(row) == "done"


def test_what_has_sent_a_retry_is_not_stopped_and_sends_no_second_one(room: Mailroom) -> None:
    def clears_up(self: Any, job: Any) -> None:
        lease = self.lease
        try:
            self.retry(countdown=0)
        finally:
            assert locks.clear(lease.name)
            until(lambda: not lease.held)

    runs = Runs(clears_up, None)
    room.task(runs, acks_late=True, **STOPS).delay(1)
    assert room.states() == ["RETRY", "SUCCESS"]
    assert len(runs) == 2


@HOW
@pytest.mark.parametrize(("fence", "left"), [("lock_fence", "queued"), (None, "working")])
def test_a_direct_call_raises_and_its_row_can_be_claimed_again(
    task: MakeTask, row: Job, on_redis: None, how: str, fence: str | None, left: str, goes_on: Any
) -> None:
    options = {"lock_name": "job:{job}", "guard": job_guard(fence), **STOPS}
    with pytest.raises(LeaseLost, match=f"job:{row.pk}"):
        call(task(goes_on, **options), how, row.pk)
    assert status(row) == left
    assert call(task(returns, **options), how, row.pk) == "done"
    assert status(row) == "done"
