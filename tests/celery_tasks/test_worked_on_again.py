"""A row that is worked on again and again: ``done`` is among the source statuses of its guard."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from django_tasklock import lock
from django_tasklock.celery.body import Body
from django_tasklock.celery.locked_run import LockedRun
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.mailroom import Mailroom, elsewhere
from tests.steps import killed_in_child

pytestmark = pytest.mark.django_db(transaction=True)

GUARD = StatusGuard(
    "app.Job", pk="job", source=["queued", "done"], to="working", done="done", failed="failed",
    fence_field="lock_fence",
)  # fmt: skip


def again(self: Any, job: int) -> None:
    """Counts in the row how often it was worked on."""
    row = Job.objects.get(pk=job)
    Job.objects.filter(pk=job).update(done_count=row.done_count + 1)


def now(row: Job) -> tuple[str, int]:
    row.refresh_from_db()
    return row.status, row.done_count


def test_41_each_call_works_on_it_and_a_redelivery_after_the_end_does_not(room: Mailroom) -> None:
    row = Job.objects.create()
    task = room.task(again, guard=GUARD, acks_late=True)
    for calls in (1, 2):
        task.delay(row.pk)
        message = room.take()
        assert room.deliver(message)[0] == "SUCCESS"
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
        assert now(row) == ("done", calls)


def test_41_the_follow_up_of_a_coalesced_call_works_on_it(room: Mailroom) -> None:
    """And the redelivery of the run that it follows, which comes before it, does not."""
    row = Job.objects.create()
    seen: list[tuple[str, int]] = []

    def work(self: Any, job: int) -> None:
        again(self, job)
        seen.append(now(row))
        if len(seen) == 1:
            task.delay(job)
            assert elsewhere(room, room.take())[0] == "IGNORED"

    task = room.task(work, guard=GUARD, acks_late=True, on_conflict="coalesce")
    task.delay(row.pk)
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", None)]
    assert seen == [("working", 1), ("working", 2)]
    assert now(row) == ("done", 2)


def test_41_a_run_that_was_killed_before_its_result_was_stored_is_not_done_again(
    room: Mailroom,
) -> None:
    """Its note says that it has ended. Its message ends as a success, with the marker."""
    row = Job.objects.create()
    task = room.task(again, guard=GUARD, acks_late=True)
    task.delay(row.pk)
    message = room.take()

    def killed_after_release() -> None:
        release = LockedRun.release

        def release_and_die(*args: Any) -> bool:
            release(*args)
            os.kill(os.getpid(), signal.SIGKILL)
            return True

        LockedRun.release = release_and_die  # type: ignore[assignment,method-assign]
        room.deliver(message)

    killed_in_child(killed_after_release)
    assert now(row) == ("done", 1)
    state, marker = room.deliver(message, redelivered=True)
    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
    assert now(row) == ("done", 1)


def test_41_a_row_that_another_call_has_done_is_not_marked_as_failed(room: Mailroom) -> None:
    """By a message that is given up: its own runs have left the row in another status."""
    row = Job.objects.create(status="done")
    task = room.task(again, guard=GUARD)
    with lock(f"job:{row.pk}", ttl=60) as lease:
        Body(task, lease.name, [row.pk], {}, survives=True).refuse(lease.fence)
    assert now(row) == ("done", 0)
