"""An operator's hold over a job: whoever set it, waits for it or is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

HOLDS = """
import sys, time
import django
django.setup()
from django_tasklock import locks
assert locks.hold(sys.argv[1], float(sys.argv[2]), "alice", "a migration")
print("held", flush=True)
time.sleep(600)
"""


def hold_and_be_killed(stage: Stage, job: int, seconds: float) -> None:
    """Hold the job's lock by a process that is killed after that."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, f"job:{job}", str(seconds)],
        cwd=ROOT, env=os.environ | stage.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    stage.kill(process.pid)
    process.communicate()
    assert said == "held\n"


def waiting(stage: Stage, job: int) -> int:
    """How many are in the lock's wait queue."""
    waiters: int = stage.redis.zcard(stage.lock_key(f"job:{job}") + " queue")
    return waiters


def clear(stage: Stage, job: int) -> None:
    """Clear the job's lock, as an operator does."""
    stage.script(
        "import django; django.setup()\n"
        "from django.core.management import call_command\n"
        f"call_command('locks', 'clear', 'job:{job}', interactive=False)"
    )


def skips_of(stage: Stage, task_id: str) -> list[dict[str, Any]]:
    """What the history says of the task's skips, to an operator who has its id."""
    said = stage.script(
        "import django; django.setup()\n"
        "from django.core.management import call_command\n"
        f"call_command('locks', 'history', '--task-id', {task_id!r}, '--format', 'json')"
    )
    return [event for event in json.loads(said) if event["kind"] == "skipped"]


def test_40_a_job_skipped_under_a_hold_says_so_and_the_history_says_by_whom_and_why(
    stage: Stage,
) -> None:
    stage.worker(concurrency=2)
    job = stage.job()
    hold_and_be_killed(stage, job, 3600)
    results = [stage.send("guarded", job) for _ in range(2)]
    for result in results:
        marker = result.get(timeout=60)
        assert (marker["reason"], marker["holder"]) == ("held_by_operator", None)
        assert (marker["held_by"], marker["hold_reason"]) == ("alice", "a migration")
    # Both were skipped within a second, and each is an event
    for result in results:
        (event,) = until(partial(skips_of, stage, result.id), "its skip", 30)
        assert (event["name"], event["reason"]) == (f"job:{job}", "held_by_operator")
        assert event["owner"]["task_id"] == result.id
        assert (event["holder"]["held_by"], event["holder"]["reason"]) == ("alice", "a migration")
    # The work is left to do
    assert stage.row(job) == ("new", None)


@pytest.mark.nightly
def test_hold_outlives_its_process_and_the_job_is_skipped(stage: Stage) -> None:
    stage.worker()
    job = stage.job()
    hold_and_be_killed(stage, job, 3600)
    result = stage.send("guarded", job)
    assert result.get(timeout=60) == {
        "status": "skipped", "reason": "held_by_operator", "lock": f"job:{job}", "holder": None,
        "held_by": "alice", "hold_reason": "a migration",
    }  # fmt: skip
    assert stage.row(job) == ("new", None)
    # When it is cleared, I expect the job to run once it is sent again
    clear(stage, job)
    assert stage.send("guarded", job).get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)


@pytest.mark.nightly
def test_job_whose_waiting_worker_is_killed_runs_once_after_the_hold(stage: Stage) -> None:
    worker = stage.worker()
    job = stage.job()
    hold_and_be_killed(stage, job, 3600)
    # Given a job that waits for the end of the hold
    result = stage.send("guarded_waiting", job)
    until(lambda: waiting(stage, job) == 1, "a waiter", 30)
    # When its process is killed, I expect the same message to wait again
    (waiter,) = worker.children
    stage.kill(waiter)
    stage.deliveries(result.id, 2)
    until(lambda: [child for child in worker.children if child != waiter], "another child", 30)
    until(lambda: waiting(stage, job) >= 1, "a waiter", 30)
    assert stage.ledger.entries("start", job=job) == []
    # and to run when the hold is over
    clear(stage, job)
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)


@pytest.mark.nightly
def test_jobs_that_wait_run_once_when_the_hold_ends_by_itself(stage: Stage) -> None:
    stage.worker(concurrency=2)
    job = stage.job()
    hold_and_be_killed(stage, job, 8)
    results = [stage.send("guarded_waiting", job) for _ in range(2)]
    until(lambda: waiting(stage, job) == 2 or stage.ledger.entries("start"), "waiters", 30)
    answers = [result.get(timeout=40) for result in results]
    # I expect one to do the work, and the other one to find it done
    assert answers.count(f"done:{job}") == 1
    assert [each["reason"] for each in answers if isinstance(each, dict)] == ["invalid_state"]
    stage.assert_settled()
    stage.assert_done_once(job)
