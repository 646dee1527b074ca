"""``lock_max_hold``: a run that works for longer loses its lease, and starts over."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, lock
from django_tasklock.exceptions import TooManyAttempts
from tests.app.models import Job
from tests.celery_tasks.conftest import held_elsewhere, job_guard, retries_once, status
from tests.mailroom import Mailroom, Runs
from tests.steps import LONG, ends
from tests.waiting import until

SHORT: dict[str, Any] = {"lock_max_hold": 0.5, "lock_ttl": LONG, "acks_late": True}


def works_too_long(self: Any, job: Any) -> str:
    until(lambda: not self.lease.held, "the end of its lease")
    return "late"


def looks(self: Any, job: Any) -> None:
    works_too_long(self, job)
    self.lease.assert_held()


def goes_on(self: Any, job: Any) -> None:
    works_too_long(self, job)
    self.retry(countdown=0)


@pytest.mark.parametrize("body", [looks, goes_on])
@pytest.mark.parametrize("guarded", [False, True])
def test_one_that_always_works_too_long_ends_with_too_many_attempts(
    room: Mailroom, row: Job, body: Any, guarded: bool
) -> None:
    runs, guard = Runs(body), job_guard() if guarded else None
    room.task(runs, lock_max_attempts=2, guard=guard, **SHORT).delay(row.pk)
    outcomes = room.work_off()
    assert [state for state, _ in outcomes] == ["IGNORED", "IGNORED", "FAILURE"]
    assert isinstance(outcomes[-1][1], TooManyAttempts)
    assert (len(runs), status(row)) == (2, "failed" if guarded else "queued")


@pytest.mark.parametrize("guarded", [False, True])
def test_one_that_returns_late_has_failed_unless_its_row_says_that_it_counts(
    room: Mailroom, row: Job, guarded: bool
) -> None:
    guard = job_guard() if guarded else None
    message = room.message(works_too_long, row.pk, guard=guard, **SHORT)
    if guarded:
        assert room.deliver(message) == ("SUCCESS", "late")
        assert status(row) == "done"
    else:
        assert "held for longer than max_hold" in str(room.fails(message, LeaseLost))


def test_the_next_waiter_has_the_lock_then_and_the_late_run_is_not_repeated(
    room: Mailroom,
) -> None:
    """The other one does the work."""

    def work(self: Any, job: Any) -> None:
        others.append(held_elsewhere(wait=None))
        self.lease.assert_held()

    others = list[Lease]()
    room.fails(room.message(work, **SHORT), LeaseLost)
    assert [each.held for each in others] == [True]
    assert room.ids() == []


def test_each_retry_has_its_own_time(room: Mailroom) -> None:
    end = list[float]()

    def work(self: Any, job: Any) -> Any:
        assert self.lease.remaining <= 20.0
        end.append(ends(self.lease))
        if not self.request.retries:
            until(lambda: self.lease.remaining < 20.0 - 0.5)
        return retries_once(self, job)

    room.task(work, lock_max_hold=20.0, lock_ttl=LONG).delay(1)
    assert room.states() == ["RETRY", "SUCCESS"]
    first, second = end
    assert second > first + 0.4


@pytest.mark.parametrize(("callers", "own"), [(20.0, 30.0), (30.0, 20.0), (20.0, None)])
def test_of_a_lease_that_is_handed_on_the_earlier_limit_counts(
    room: Mailroom, callers: float, own: float | None
) -> None:
    def work(self: Any, job: Any) -> Any:
        return self.lease.extend(LONG), self.lease.remaining, self.lease.fence

    task = room.task(work, lock_max_hold=own, lock_ttl=10.0)
    with lock("job:1", ttl=10.0, max_hold=callers) as lease:
        task.apply_async([1], lease=lease)
    ((state, (extended, remaining, fence)),) = room.work_off()
    assert (state, extended, fence) == ("SUCCESS", True, lease.fence)
    assert 10.0 < remaining <= 20.0
