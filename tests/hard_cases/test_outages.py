"""The lock's Redis or the broker is away at the worst moment: case 20, and on_outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_tasklock import StoreUnavailable
from tests.hard_cases.conftest import MakeStage
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import Worker
from tests.nights import by_day
from tests.proxy import CutProxy
from tests.waiting import until

pytestmark = pytest.mark.slow
TTL_SECONDS = 6.0


@contextmanager
def locks_away(stage: Stage, how: str) -> Iterator[None]:
    """The Redis of the locks is killed, or stopped so that nothing answers; then it is back."""
    if how == "killed":
        stage.locks.kill()
    else:
        stage.locks.pause()
    try:
        yield
    finally:
        if how == "killed":
            stage.locks.restart()
        else:
            stage.locks.resume()


@pytest.mark.parametrize("how", by_day("killed", "paused"))
def test_20_jobs_that_cannot_ask_for_their_lock_go_back_to_the_queue(
    make_stage: MakeStage, how: str
) -> None:
    """on_outage="retry": none is skipped, none runs; later each is done once, retries unused."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.pair()
    jobs = [stage.job() for _ in range(4)]
    with locks_away(stage, how):
        results = [stage.send("guarded", job) for job in jobs]
        until(
            lambda: all(
                len(stage.ledger.entries("prerun", task_id=result.id)) >= 2 for result in results
            ),
            "each was tried twice",
            40,
        )
        assert [result.state for result in results] == ["PENDING"] * len(jobs)
    for job, result in zip(jobs, results, strict=True):
        assert result.get(timeout=40) == f"done:{job}"
        assert [start.retries for start in stage.ledger.entries("start", job=job)] == [0]
        stage.assert_done_once(job)
    stage.assert_settled()


def test_20_an_outage_is_raised_or_ridden_out_where_the_task_says_so(
    make_stage: MakeStage,
) -> None:
    """on_outage="raise" is a failure called StoreUnavailable; "run" runs on the guard alone."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker()
    refused, run = stage.job(), stage.job()
    with locks_away(stage, "killed"):
        with pytest.raises(StoreUnavailable):
            stage.send("outage_raise", refused).get(timeout=60)
        assert stage.send("outage_run", run).get(timeout=60) == f"done:{run}"
        again = stage.send("outage_run", run).get(timeout=60)
    assert stage.ledger.runs(job=refused) == []
    assert again["reason"] == "invalid_state"
    stage.assert_done_once(run)
    stage.assert_settled()


@pytest.mark.nightly
def test_20_a_short_outage_at_renewal_is_ridden_out(make_stage: MakeStage) -> None:
    """Less than the lease: renewed once Redis answers again, and the job is a success."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker()
    job, gate = stage.job(), stage.gate()
    result = stage.send("guarded", job, [{"gate": str(gate), "check": True}])
    began = stage.started(job).at
    key = stage.lock_key(f"job:{job}")
    # Begin right after a renewal, so that the next one falls into the outage.
    until(lambda: 0 < stage.redis.pttl(key) < TTL_SECONDS * 1000 - 1500, "a renewal is due", 10)
    until(lambda: stage.redis.pttl(key) > TTL_SECONDS * 1000 - 500, "renewed", 10)
    renewed = stage.redis.pttl(key)
    with locks_away(stage, "paused"):
        until(lambda: stage.ledger.clock() > began + TTL_SECONDS / 2 + 2, "a while", 10)
    until(lambda: stage.redis.pttl(key) > renewed - 1500, "renewed after the outage", 10)
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)


@pytest.mark.parametrize("how", by_day("paused", "killed"))
def test_20_an_outage_longer_than_the_lease_fails_the_check_of_the_lease(
    make_stage: MakeStage, how: str
) -> None:
    """It is not known who holds the lock: that run does not count, and the job starts over."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker()
    job, gate = stage.job(), stage.gate()
    result = stage.send("guarded", job, [{"gate": str(gate), "check": True}])
    began = stage.started(job).at
    over = (
        began + TTL_SECONDS + TTL_SECONDS / 2 + 1
    )  # the last renewal came at a third of the lease
    with locks_away(stage, how):
        until(lambda: stage.ledger.clock() > over, "the lease is over", 60)
        gate.touch()
        broke = until(lambda: stage.ledger.entries("broke"), "the check failed", 60)
        assert not broke[0].held
        assert stage.row(job)[0] != "done"
    assert result.get(timeout=40) == f"done:{job}"
    stage.assert_settled(30)
    stage.assert_done_once(job)
    assert len(stage.ledger.runs(job=job)) == 2


@pytest.mark.parametrize("how", ["killed", "paused"])
@pytest.mark.nightly
def test_20_an_outage_at_the_release_loses_neither_the_work_nor_the_lock(
    make_stage: MakeStage, how: str
) -> None:
    """The row is done within the lease; the lock ends by its ttl, and never "skipped"."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker()
    job, gate = stage.job(), stage.gate()
    result = stage.send("guarded", job, [{"gate": str(gate)}])
    stage.started(job)
    with locks_away(stage, how):
        gate.touch()
        stage.completed(job)
        until(lambda: result.state in ("SUCCESS", "FAILURE"), "reported", 60)
    stage.assert_settled(TTL_SECONDS + 5)
    stage.assert_done_once(job)
    if result.state == "SUCCESS":
        assert result.get(timeout=5) == f"done:{job}"
    else:
        assert isinstance(result.result, StoreUnavailable)


def pair_that_sends_through(proxy: CutProxy, stage: Stage) -> tuple[Worker, Worker]:
    """Two workers that get their messages from the broker itself."""
    # A heartbeat to the broker that refuses would stop a worker's event loop for good.
    return stage.pair(
        conf={"broker_write_url": proxy.url, "broker_read_url": stage.broker.url},
        options=("--without-heartbeat",),
    )


@pytest.mark.parametrize("task", by_day("retry", "early_retry"))
def test_20_a_busy_job_that_cannot_be_requeued_is_neither_lost_nor_skipped(
    make_stage: MakeStage, task: str
) -> None:
    """The broker takes no message while the lock is busy: kept by it, or by the child if acked."""
    stage = make_stage(ttl=TTL_SECONDS)
    with CutProxy(("127.0.0.1", stage.broker_port)) as proxy:
        workers = pair_that_sends_through(proxy, stage)
        job, gate = stage.job(), stage.gate()
        stage.send("guarded", job, [{"gate": str(gate)}])
        stage.started(job)
        proxy.refuse()
        proxy.cut()
        busy = stage.send(task, job)
        until(
            lambda: sum(each.text().count("could not be requeued") for each in workers) >= 2,
            "it was tried twice to requeue it",
            60,
        )
        assert busy.state == "PENDING"
        proxy.accept()
        gate.touch()
        assert busy.get(timeout=60) == f"done:{job}"
        stage.assert_settled(40)
        assert stage.ledger.overlaps(job=job) == []
        assert stage.ledger.completions(job=job) == 2


def test_20_a_retry_that_the_broker_does_not_take_loses_no_job(make_stage: MakeStage) -> None:
    """Celery would give its message up: it comes back, and its row can be claimed."""
    stage = make_stage(ttl=TTL_SECONDS)
    with CutProxy(("127.0.0.1", stage.broker_port)) as proxy:
        workers = pair_that_sends_through(proxy, stage)
        job, gate = stage.job(), stage.gate()
        result = stage.send("once", job, [{"gate": str(gate), "then": "retry"}, {}])
        stage.started(job)
        proxy.refuse()
        proxy.cut()
        gate.touch()
        until(
            lambda: any("could not go on" in each.text() for each in workers),
            "its retry was not taken",
            60,
        )
        proxy.accept()
        assert result.get(timeout=60) == f"done:{job}"
        stage.assert_settled(40)
        stage.assert_done_once(job)
        assert [start.retries for start in stage.ledger.entries("start", job=job)] == [0, 0]


def test_27_a_redelivery_that_cannot_ask_the_result_backend_does_not_run_beside_the_first(
    make_stage: MakeStage,
) -> None:
    """on_outage="run" is about the locks' Redis, which answers: one run, and nothing is lost."""
    stage = make_stage(ttl=TTL_SECONDS, visibility=2)
    with CutProxy(("127.0.0.1", stage.broker_port)) as proxy:
        away = proxy.url.rpartition("/")[0] + "/1"
        stage.pair(conf={"result_backend": away, "redis_socket_connect_timeout": 1})
        proxy.refuse()
        proxy.cut()
        job, gate = stage.job(), stage.gate()
        result = stage.send("outage_alone", job, [{"gate": str(gate)}])
        stage.started(job)
        stage.deliveries(result.id, 3)
        until(
            lambda: (
                any("does not say whether" in each.text() for each in stage.workers)
                or len(stage.ledger.entries("prerun", task_id=result.id)) >= 3
            ),
            "redeliveries were checked",
            30,
        )
        assert len(stage.ledger.runs(job=job)) == 1
        gate.touch()
        stage.completed(job)
        proxy.accept()
        stage.assert_settled(60)
        assert stage.ledger.overlaps(job=job) == []
        assert len(stage.ledger.runs(job=job)) == 1
