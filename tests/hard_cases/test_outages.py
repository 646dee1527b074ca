"""What the store of the locks or the broker does to jobs: cases 20, 27, 39 and 43."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from django_tasklock import InvalidLockConfig, StoreUnavailable
from tests.nights import by_day
from tests.proxy import CutProxy
from tests.stage.stage import Stage
from tests.waiting import until

TTL_SECONDS = 6.0
pytestmark = [pytest.mark.slow, pytest.mark.stage(ttl=TTL_SECONDS)]


@contextmanager
def locks_away(stage: Stage, how: str) -> Iterator[None]:
    """The Redis of the locks is killed, or stopped so that nothing answers, or it takes nothing
    that needs memory; then it is as before."""
    limit = partial(stage.redis.config_set, "maxmemory")
    deeds: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "killed": (stage.locks.kill, stage.locks.restart),
        "paused": (stage.locks.pause, stage.locks.resume),
        "full": (partial(limit, 1), partial(limit, 0)),
    }
    away, back = deeds[how]
    away()
    try:
        yield
    finally:
        back()


@pytest.mark.parametrize("how", by_day("killed", "paused"))
def test_20_jobs_that_cannot_ask_for_their_lock_go_back_to_the_queue(
    stage: Stage, how: str
) -> None:
    # Given jobs that are sent while nobody can ask for their locks
    stage.pair()
    jobs = [stage.job() for _ in range(4)]
    with locks_away(stage, how):
        results = [stage.send("guarded", job) for job in jobs]

        # I expect each to be tried and sent back: none is skipped, none runs
        for result in results:
            stage.deliveries(result.id, 2, "prerun")
        assert [result.state for result in results] == ["PENDING"] * len(jobs)

    # And each to be done once later, with its own retries unused
    for job, result in zip(jobs, results, strict=True):
        stage.assert_well(job, result)
        assert [start.retries for start in stage.ledger.entries("start", job=job)] == [0]


def test_20_an_outage_is_raised_or_ridden_out_where_the_task_says_so(stage: Stage) -> None:
    """on_outage="raise" is a failure called StoreUnavailable; "run" runs on the guard alone."""
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


@pytest.mark.parametrize("how", by_day("paused", "killed"))
def test_20_an_outage_longer_than_the_lease_fails_the_check_of_the_lease(
    stage: Stage, how: str
) -> None:
    """It is not known who holds the lock: that run does not count, and the job starts over."""
    stage.worker()
    with stage.busy("guarded", check=True) as (job, result, start), locks_away(stage, how):
        # The last renewal came at a third of the lease.
        over = start.at + TTL_SECONDS * 1.5 + 1
        until(lambda: stage.ledger.clock() > over, "the lease is over", 60)
        stage.open_gates()
        broke = until(lambda: stage.ledger.entries("broke"), "the check failed", 60)
        assert not broke[0].held
        assert stage.row(job)[0] != "done"
    stage.assert_well(job, result, runs=2)


@pytest.mark.parametrize("how", ["killed", "paused"])
@pytest.mark.nightly
def test_20_an_outage_at_the_release_loses_neither_the_work_nor_the_lock(
    stage: Stage, how: str
) -> None:
    """The row is done within the lease; the lock ends by its ttl, and never "skipped"."""
    stage.worker()
    with stage.busy("guarded") as (job, result, _), locks_away(stage, how):
        stage.open_gates()
        until(lambda: result.state in ("SUCCESS", "FAILURE"), "reported", 60)
    stage.assert_settled(TTL_SECONDS + 5)
    stage.assert_done_once(job)
    if result.state == "SUCCESS":
        assert result.get(timeout=5) == f"done:{job}"
    else:
        assert isinstance(result.result, StoreUnavailable)


@pytest.mark.parametrize("task", by_day("retry", "early_retry"))
def test_20_a_busy_job_that_cannot_be_requeued_is_neither_lost_nor_skipped(
    stage: Stage, task: str
) -> None:
    """The broker takes no message while the lock is busy: kept by it, or by the child if acked."""
    with CutProxy(("127.0.0.1", stage.broker_port)) as proxy:
        # They get their messages from the broker itself. A heartbeat to the broker that refuses
        # would stop a worker's event loop for good.
        workers = stage.pair(
            conf={"broker_write_url": proxy.url, "broker_read_url": stage.broker.url},
            options=("--without-heartbeat",),
        )
        with stage.busy("guarded") as (job, _, _):
            proxy.refuse()
            proxy.cut()
            result = stage.send(task, job)
            until(
                lambda: sum(each.text().count("could not be requeued") for each in workers) >= 2,
                "it was tried twice to requeue it",
            )
            assert result.state == "PENDING"
            proxy.accept()
        assert result.get(timeout=60) == f"done:{job}"
        stage.assert_settled(40)
        stage.assert_completed(job, 2)


@pytest.mark.stage(ttl=TTL_SECONDS, visibility=2)
def test_27_a_redelivery_that_cannot_ask_the_result_backend_does_not_run_beside_the_first(
    stage: Stage,
) -> None:
    """on_outage="run" is about the locks' Redis, which answers: one run, and nothing is lost."""
    with CutProxy(("127.0.0.1", stage.broker_port)) as proxy:
        away = proxy.url.rpartition("/")[0] + "/1"
        stage.pair(conf={"result_backend": away, "redis_socket_connect_timeout": 1})
        proxy.refuse()
        proxy.cut()
        with stage.busy("outage_alone") as (job, result, _):
            stage.deliveries(result.id, 3, "prerun")
            assert len(stage.ledger.runs(job=job)) == 1
        stage.completed(job)
        proxy.accept()
        stage.assert_settled()
        assert len(stage.ledger.runs(job=job)) == 1


def test_39_a_job_goes_on_beside_a_full_server_and_those_that_come_run_later(stage: Stage) -> None:
    """Its lease is renewed and released; the others are neither skipped nor lost."""
    stage.worker(concurrency=2)
    later = stage.job()
    with stage.busy("guarded", check=True) as (job, result, _), locks_away(stage, "full"):
        key = stage.lock_key(f"job:{job}")
        until(lambda: 0 < stage.redis.pttl(key) < TTL_SECONDS * 1000 - 1500, "a renewal is due", 20)
        until(lambda: stage.redis.pttl(key) > TTL_SECONDS * 1000 - 1000, "renewed", 20)
        waits = stage.send("guarded", later)
        stage.deliveries(waits.id, 2, "prerun")
        stage.open_gates()
        assert result.get(timeout=60) == f"done:{job}"
        until(lambda: not stage.held(), "released", 20)
    stage.assert_well(later, waits)
    stage.assert_done_once(job)


def test_43_a_job_on_a_cache_that_keeps_nothing_fails_before_its_work(stage: Stage) -> None:
    """Workers run no system checks. The job is no success, and it is not lost either."""
    stage.worker(environment={"STAGE_CACHE": "django.core.cache.backends.dummy.DummyCache"})
    job = stage.job()
    with pytest.raises(InvalidLockConfig, match="a DummyCache: it grants every lock"):
        stage.send("guarded", job).get(timeout=60)
    assert stage.ledger.runs(job=job) == []
    assert stage.row(job)[0] == "new"
    stage.assert_settled()
