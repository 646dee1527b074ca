"""A worker of each pool is killed as a whole; another one runs its job again, once."""

from __future__ import annotations

import pytest

from tests.acceptance.hard_cases.conftest import MakeStage, need_pool
from tests.acceptance.surroundings.recovery import LONG_SECONDS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_a_job_of_a_worker_that_was_killed_runs_again(make_stage: MakeStage, pool: str) -> None:
    """Prefork, and a double in each pool, are tried in the hard cases.

    On RabbitMQ: kombu gives messages of a dead worker back from Redis only at the start of a worker
    with one of the green pools, whatever the task.
    """
    need_pool(pool)
    stage = make_stage("rabbitmq")
    concurrency = 1 if pool == "solo" else 4
    first = stage.worker(pool=pool, concurrency=concurrency)
    job, gate = stage.job(), stage.gate()
    result = stage.send("guarded", job, [{"seconds": LONG_SECONDS}, {"gate": str(gate)}])
    before = stage.started(job)
    stage.watch(before.pid)
    stage.kill(first.pid)
    stage.worker(pool=pool, concurrency=concurrency)
    again = stage.started(job, 2)
    assert again.task_id == before.task_id
    assert again.fence > before.fence
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_done_once(job)
    stage.assert_settled()
