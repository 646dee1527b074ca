"""What is held against a message, and what is not: cases 21, 22, 23 and 33."""

from __future__ import annotations

import signal

import pytest

from django_tasklock import TooManyAttempts
from tests.hard_cases.conftest import MakeStage, need_pool, on_all_pools, on_both_brokers
from tests.waiting import until

pytestmark = pytest.mark.slow


@on_both_brokers
def test_21_a_job_that_rejects_itself_runs_again_each_time(
    make_stage: MakeStage, broker: str
) -> None:
    """Six times back to the queue, though one death would be enough to give it up."""
    stage = make_stage(broker)
    stage.worker()
    job = stage.job()
    result = stage.send("once", job, [*[{"then": "reject"}] * 6, {}])
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)
    assert len(stage.ledger.runs(job=job)) == 7


@on_both_brokers
def test_22_a_job_that_a_killed_worker_had_only_prefetched_runs(
    make_stage: MakeStage, broker: str
) -> None:
    """It was never begun: the death of that worker is not its doing."""
    stage = make_stage(broker, visibility=2)
    worker = stage.worker(conf={"worker_prefetch_multiplier": 4})
    first, prefetched = stage.job(), stage.job()
    stage.send("guarded", first, [{"seconds": 60}, {}])
    started = stage.started(first)
    result = stage.send("once", prefetched)
    stage.deliveries(result.id, 1)
    stage.watch(started.pid)
    stage.kill(worker.pid)
    assert stage.ledger.runs(job=prefetched) == []
    stage.worker()
    assert result.get(timeout=60) == f"done:{prefetched}"
    stage.assert_settled()
    stage.assert_done_once(prefetched)
    stage.assert_done_once(first)


@on_both_brokers
def test_23_a_job_that_a_cold_shutdown_cut_short_runs_again(
    make_stage: MakeStage, broker: str
) -> None:
    """The worker is told to stop at once, by SIGQUIT: an orderly end for the job."""
    stage = make_stage(broker)
    worker = stage.worker()
    job = stage.job()
    result = stage.send("once", job, [{"seconds": 60}, {"seconds": 0.1}])
    stage.watch(stage.started(job).pid)
    worker.send(signal.SIGQUIT)
    until(lambda: not worker.running, "the worker has stopped", 60)
    stage.worker()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)
    assert len(stage.ledger.runs(job=job)) == 2


@on_all_pools
def test_33_a_job_that_leaves_by_sys_exit_is_given_up(make_stage: MakeStage, pool: str) -> None:
    """As one that kills its child. Only prefork gives the message back by itself: the worker of the
    solo pool ends, and those of the others keep the message until they end."""
    need_pool(pool)
    stage = make_stage("rabbitmq")
    job = stage.job()
    result = stage.send("once", job, [{"then": "exit"}])
    for _ in range(2):
        before = len(stage.ledger.entries("broke"))
        worker = stage.worker(pool=pool, wait=False)
        until(
            lambda before=before: (  # type: ignore[misc]
                result.state == "FAILURE"
                or (len(stage.ledger.entries("broke")) > before and not stage.held())
            ),
            "the run has ended, or the job is given up",
            90,
        )
        worker.end()
    with pytest.raises(TooManyAttempts):
        result.get(timeout=60)
    assert len(stage.ledger.runs(job=job)) == 1
    assert stage.row(job)[0] == "failed"
    assert stage.held() == []


@pytest.mark.nightly
def test_33_a_shutdown_of_the_worker_is_not_counted_with_the_exits(make_stage: MakeStage) -> None:
    """Three runs may end by themselves; the one that a cold shutdown ends comes on top."""
    stage = make_stage()
    worker = stage.worker()
    job = stage.job()
    result = stage.send("poison", job, [{"then": "exit"}, {"seconds": 60}, {"then": "exit"}])
    stage.watch(stage.started(job, 2).pid)
    worker.send(signal.SIGQUIT)
    until(lambda: not worker.running, "the worker has stopped", 60)
    stage.worker()
    with pytest.raises(TooManyAttempts):
        result.get(timeout=60)
    assert len(stage.ledger.runs(job=job)) == 4
    assert stage.row(job)[0] == "failed"
    stage.assert_settled()
