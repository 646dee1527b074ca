"""A task's own retries beside the lock's: cases 12, 13 and 15."""

from __future__ import annotations

from itertools import pairwise

import pytest

from django_tasklock import LockNotAcquired
from tests.hard_cases.conftest import MakeStage
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_12_ten_polls_of_a_busy_lock_cost_none_of_the_tasks_own_retries(
    make_stage: MakeStage,
) -> None:
    """max_retries=2 and two retries of its own: ``retries`` is 0, 1, 2, the headers are intact."""
    # What waits in a worker's memory must not time out there, so polls are at most 1 s apart.
    stage = make_stage(visibility=2)
    stage.pair()
    job, gate = stage.job(), stage.gate()
    holder = stage.send("skip", job, [{"gate": str(gate)}])
    stage.started(job)
    result = stage.send(
        "retry",
        job,
        [{"then": "retry"}, {"then": "retry"}, {}],
        headers={"trace_mark": "kept"},
    )
    until(
        lambda: len(stage.ledger.entries("prerun", task_id=result.id)) >= 10,
        "ten polls of the busy lock",
        60,
    )
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    assert holder.get(timeout=5) == f"done:{job}"
    starts = stage.ledger.entries("start", task_id=result.id)
    assert [start.retries for start in starts] == [0, 1, 2]
    assert [start.mark for start in starts] == ["kept"] * 3
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def test_13_a_wait_longer_than_its_budget_ends_as_configured(stage: Stage) -> None:
    """LockNotAcquired after lock_retry_for; the shared task instance is left as it was."""
    stage.pair()
    job, gate = stage.job(), stage.gate()
    stage.send("skip", job, [{"gate": str(gate)}])
    began = stage.started(job).at
    result = stage.send("budget", job)
    with pytest.raises(LockNotAcquired):
        result.get(timeout=60)
    polls = stage.ledger.entries("prerun", task_id=result.id)
    assert polls[-1].at - polls[0].at >= 2.5
    assert polls[-1].at - began < 10
    assert len(polls) > 1
    # The child that holds the lock is busy: this is answered by the one that polled.
    attributes = stage.client.send_task("own_attributes", ["budget"]).get(timeout=60)
    assert "override_max_retries" not in attributes
    gate.touch()
    stage.assert_settled()
    assert len(stage.ledger.runs(job=job)) == 1


def test_15_autoretry_without_delay_on_two_workers_neither_overlaps_nor_skips_nor_waits(
    make_stage: MakeStage,
) -> None:
    """The retry is published before the lock is released: the other worker may be that quick."""
    ttl = 10.0
    stage = make_stage(ttl=ttl)
    stage.pair(concurrency=2)
    jobs = [stage.job() for _ in range(12)]
    script = [{"seconds": 0.02, "then": "raise"}, {"seconds": 0.02, "then": "raise"}, {}]
    results = [stage.send("autoretry", job, script) for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    spans = []
    for job in jobs:
        starts = stage.ledger.entries("start", job=job)
        assert [start.retries for start in starts] == [0, 1, 2]
        stage.assert_done_once(job)
        spans += [later.at - start.at for start, later in pairwise(starts)]
    print("longest time between two tries:", round(max(spans), 3))
    assert max(spans) < ttl / 2
