"""An operator's hold over a job: whoever set it, waits for it or is killed meanwhile."""

from __future__ import annotations

import json
import signal
from functools import partial
from typing import Any

import pytest

from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


def hold_and_be_killed(stage: Stage, job: int, seconds: float) -> None:
    """Hold the job's lock by a process that is killed after that."""
    ended = stage.process(f"""
import os, signal
from django_tasklock import locks
assert locks.hold("job:{job}", {seconds}, "alice", "a migration")
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def command(stage: Stage, *arguments: str, **options: Any) -> str:
    """What ``manage.py locks`` says to an operator."""
    return stage.script(
        "from django.core.management import call_command\n"
        f"call_command('locks', *{arguments!r}, **{options!r})"
    )


def waiting(stage: Stage, job: int) -> int:
    """How many are in the lock's wait queue."""
    return int(stage.redis.zcard(stage.lock_key(f"job:{job}") + " queue"))


def skips_of(stage: Stage, task_id: str) -> list[dict[str, Any]]:
    """What the history says of the task's skips, to an operator who has its id."""
    said = command(stage, "history", "--task-id", task_id, "--format", "json")
    return [event for event in json.loads(said) if event["kind"] == "skipped"]


def test_40_a_job_skipped_under_a_hold_says_so_and_the_history_says_by_whom_and_why(
    stage: Stage,
) -> None:
    stage.worker(concurrency=2)
    job = stage.job()
    hold_and_be_killed(stage, job, 3600)
    results = [stage.send("guarded", job) for _ in range(2)]
    for result in results:
        assert result.get(timeout=60) == {
            "status": "skipped", "reason": "held_by_operator", "lock": f"job:{job}",
            "holder": None, "held_by": "alice", "hold_reason": "a migration",
        }  # fmt: skip
    # Both were skipped within a second, and each is an event
    for result in results:
        (event,) = until(partial(skips_of, stage, result.id), "its skip", 30)
        assert (event["name"], event["reason"]) == (f"job:{job}", "held_by_operator")
        assert event["owner"]["task_id"] == result.id
        assert (event["holder"]["held_by"], event["holder"]["reason"]) == ("alice", "a migration")
    # The work is left to do: when it is cleared, it is done once it is sent again
    assert stage.row(job) == ("new", None)
    command(stage, "clear", f"job:{job}", interactive=False)
    stage.assert_well(job, stage.send("guarded", job))


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
    command(stage, "clear", f"job:{job}", interactive=False)
    stage.assert_well(job, result)
