"""A project's own class of requests (Celery's ``Task.Request``) beside ours: case 38."""

from __future__ import annotations

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from tests.hard_cases.stage import Stage
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow

KILL = {"then": "kill"}


@pytest.mark.parametrize("task", by_day("own_before", "own_after"))
def test_38_an_own_request_class_and_ours_both_do_their_part(stage: Stage, task: str) -> None:
    """The main process clears the lock of a child that died, and notes a hard limit twice."""
    # A hard limit in case that a killed child's message is not noticed.
    stage.worker(conf={"task_time_limit": 20})

    again = stage.job()
    assert stage.send(task, again, [KILL, {}]).get(timeout=60) == f"done:{again}"
    stage.assert_done_once(again)

    gone = stage.job()
    with pytest.raises(WorkerLostError):
        # Nobody takes the lock over: its message does not come back, and no other one comes.
        stage.send(f"{task}_dropped", gone, [KILL]).get(timeout=60)
    until(lambda: not stage.held(), "the lock is free", 10)

    limited = stage.job()
    result = stage.send(task, limited, [{"kind": "stuck", "seconds": 20}], time_limit=1.0)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=60)
    until(lambda: stage.ledger.entries("own on_timeout", task_id=result.id), "theirs", 10)
    until(lambda: stage.row(limited)[0] == "failed", "the row says failed", 10)
    stage.assert_settled()
