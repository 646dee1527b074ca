"""A pool that shrinks ends idle processes: no death of a run, and no attempt."""

from __future__ import annotations

import pytest

from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.surroundings.recovery import LONG_SECONDS
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_a_pool_that_shrinks_leaves_the_run_alone_and_a_kill_is_seen(stage: Stage) -> None:
    worker = stage.worker(options=("--autoscale=4,1",), environment={"AUTOSCALE_KEEPALIVE": "1"})
    job, gate = stage.job(), stage.gate()
    result = stage.send("once", job, [{"gate": str(gate)}])
    stage.started(job)
    others = [stage.job() for _ in range(6)]
    for other in others:
        stage.send("guarded", other, [{"seconds": 2}])
    until(lambda: len(worker.children) > 2, "that the pool grows")
    for other in others:
        stage.completed(other)
    until(lambda: len(worker.children) == 1, "that the pool shrinks")
    gate.touch()
    # It may run once only: an end of the process would have been an attempt.
    assert result.get(timeout=60) == f"done:{job}"
    assert len(stage.ledger.entries("start", job=job)) == 1

    killed = stage.job()
    again = stage.send("guarded", killed, [{"seconds": LONG_SECONDS}, {}])
    stage.kill(stage.started(killed).pid)
    assert again.get(timeout=60) == f"done:{killed}"
    for each in (job, killed, *others):
        stage.assert_done_once(each)
    stage.assert_settled()
