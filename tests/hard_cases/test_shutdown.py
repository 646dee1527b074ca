"""Every way in which a worker or its child stops, and the soft limit: case 9."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from tests.hard_cases.conftest import MakeStage, on_both_brokers
from tests.hard_cases.stage import Stage
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow
SOFT = {"worker_soft_shutdown_timeout": 1.0}


def test_09_a_soft_limit_releases_the_lock(stage: Stage) -> None:
    """SoftTimeLimitExceeded is raised in the body, and the lock goes with it."""
    stage.worker()
    job = stage.job()
    with pytest.raises(SoftTimeLimitExceeded):
        stage.send("guarded", job, [{"seconds": 30}], soft_time_limit=1).get(timeout=60)
    stage.assert_settled()
    assert stage.row(job)[0] == "failed"


def test_09_a_warm_shutdown_lets_the_job_end_and_releases_the_lock(stage: Stage) -> None:
    """SIGTERM: the body runs to its end; nothing is left."""
    worker = stage.worker()
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": 2}])
    stage.started(job)
    worker.stop(signal.SIGTERM)
    assert result.state == "SUCCESS"
    stage.assert_settled(5)
    stage.assert_done_once(job)


@on_both_brokers
@pytest.mark.parametrize(
    ("signals", "conf"),
    [
        pytest.param([signal.SIGQUIT], {}, id="cold"),
        pytest.param([signal.SIGQUIT], SOFT, id="soft", marks=pytest.mark.nightly),
        pytest.param(
            [signal.SIGINT, signal.SIGINT], {}, id="SIGINT twice", marks=pytest.mark.nightly
        ),
    ],
)
def test_09_a_cold_shutdown_releases_the_lock_and_the_message_is_back_in_the_queue(
    make_stage: MakeStage, broker: str, signals: list[int], conf: dict[str, Any]
) -> None:
    """The body is cut short; the next worker runs the job again, and it completes once."""
    stage = make_stage(broker)
    worker = stage.worker(conf=conf)
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": 60}, {"seconds": 0.1}])
    stage.watch(stage.started(job).pid)
    for number, signum in enumerate(signals):
        if number:
            until(lambda: "Warm shutdown" in worker.text(), "the first signal arrived", 10)
        worker.send(signum)
    until(lambda: not worker.running, "the worker has stopped", 60)
    assert stage.held() == []
    assert stage.queued() == 1
    stage.worker()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)
    assert len(stage.ledger.runs(job=job)) == 2


@pytest.mark.parametrize("option", by_day("--max-tasks-per-child=1", "--max-memory-per-child=1"))
def test_09_a_child_that_is_replaced_after_its_task_leaves_no_lock(
    stage: Stage, option: str
) -> None:
    """The child exits right after its task; all jobs are done, each by a child of its own."""
    stage.worker(options=(option,))
    jobs = [stage.job() for _ in range(3)]
    for job in jobs:
        stage.send("guarded", job)
    for job in jobs:
        stage.completed(job)
    stage.assert_settled()
    for job in jobs:
        stage.assert_done_once(job)
    assert len({stage.started(job).pid for job in jobs}) == 3
