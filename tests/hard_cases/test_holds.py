"""An operator's hold over a job: whoever set it, waits for it or is killed meanwhile."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.stage.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


def hold_and_be_killed(stage: Stage, job: int) -> None:
    """Hold the job's lock by a process that is killed after that."""
    with pytest.raises(EOFError):
        stage.script(f"""
import os, signal
from django_tasklock import locks
assert locks.hold("job:{job}", 3600, "alice", "a migration")
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert stage.held() == [f"job:{job}"]


def skips_of(stage: Stage, task_id: str) -> list[dict[str, Any]]:
    """What the history says of the task's skips, to an operator who has its id."""
    said = stage.locks_command("history", "--task-id", task_id, "--format", "json")
    return [event for event in json.loads(said) if event["kind"] == "skipped"]


def test_40_a_job_skipped_under_a_hold_says_so_and_the_history_says_by_whom_and_why(
    shared: Stage,
) -> None:
    # Given a job whose lock an operator holds
    job = shared.job()
    hold_and_be_killed(shared, job)

    # I expect each of its messages to be skipped, and to say so
    results = [shared.send("guarded", job) for _ in range(2)]
    for result in results:
        assert result.get(timeout=60) == {
            "status": "skipped", "reason": "held_by_operator", "lock": f"job:{job}",
            "holder": None, "held_by": "alice", "hold_reason": "a migration",
        }  # fmt: skip

    # And the history as well. Both were skipped within a second, and each is an event
    for result in results:
        (event,) = until(partial(skips_of, shared, result.id), "its skip", 30)
        assert (event["name"], event["reason"]) == (f"job:{job}", "held_by_operator")
        assert event["owner"]["task_id"] == result.id
        assert (event["holder"]["held_by"], event["holder"]["reason"]) == ("alice", "a migration")

    # And the work to be left to do: when the hold is cleared, it is done once it is sent again
    assert shared.row(job) == ("new", None)
    shared.locks_command("clear", f"job:{job}", interactive=False)
    shared.assert_well(job, shared.send("guarded", job))


@pytest.mark.nightly
def test_job_whose_waiting_worker_is_killed_runs_once_after_the_hold(stage: Stage) -> None:
    worker = stage.worker()
    job = stage.job()
    hold_and_be_killed(stage, job)
    # Given a job that waits for the end of the hold
    result = stage.send("guarded_waiting", job)
    until(lambda: stage.waiting(job) == 1, "a waiter", 30)
    # When its process is killed, I expect the same message to wait again
    (waiter,) = worker.children
    stage.kill(waiter)
    stage.deliveries(result.id, 2)
    until(lambda: [child for child in worker.children if child != waiter], "another child", 30)
    until(lambda: stage.waiting(job) >= 1, "a waiter", 30)
    assert stage.ledger.entries("start", job=job) == []
    # and to run when the hold is over
    stage.locks_command("clear", f"job:{job}", interactive=False)
    stage.assert_well(job, result)
