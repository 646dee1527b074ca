"""Leases that are kept while a body works, that are lost, or handed on: cases 16, 18 and 36."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from django_tasklock import LeaseLost
from django_tasklock.exceptions import TooManyAttempts
from tests.nights import by_day
from tests.stage.brokers import RedisBroker
from tests.stage.fixtures import need_pool, on_all_pools, on_both_brokers, shared_on_both_brokers
from tests.stage.stage import Begun, Stage
from tests.tenants import MAKE_KEY
from tests.waiting import until

TTL_SECONDS = 5.0
pytestmark = [pytest.mark.slow, pytest.mark.stage(ttl=TTL_SECONDS)]
KINDS = ("sleep", "child", "compute")


@on_all_pools
def test_18_a_lease_is_kept_while_the_body_works_longer_than_it_lasts(
    stage: Stage, pool: str
) -> None:
    # Given jobs that sleep, wait for a subprocess or compute for longer than a lease lasts;
    # and beside them plain tasks that take a lock in their body
    need_pool(pool)
    stage.worker(pool=pool, concurrency=1 if pool == "solo" else 4)
    plain = [stage.send("plain_with_a_lock", stage.job()) for _ in range(2)]
    jobs = {stage.job(): kind for kind in KINDS}
    results = {
        job: stage.send("guarded", job, [{"kind": kind, "seconds": TTL_SECONDS + 2, "check": True}])
        for job, kind in jobs.items()
    }

    # I expect each to be the holder throughout
    for job, kind in jobs.items():
        start = stage.started(job)
        lease = until(partial(stage.redis.get, stage.lock_key(f"job:{job}")), "its lease")
        until(lambda start=start: stage.ledger.clock() > start.at + TTL_SECONDS + 0.5)  # type: ignore[misc]
        assert stage.redis.get(stage.lock_key(f"job:{job}")) == lease, kind
        assert stage.ledger.completions(job=job) == 0, "too late to see"

    # And each to be done once
    for job, result in results.items():
        stage.assert_well(job, result)

    # And a lock to say which task holds it
    for each in plain:
        assert each.get(timeout=60) == ["plain_with_a_lock", each.id]


@contextmanager
def losing(stage: Stage, lost: Begun) -> Iterator[None]:
    """What keeps the body of ``lost`` from renewing ends with the block: LeaseLost; its last update
    touches no row; and the row of the next holder, which has the lock by then, is intact."""
    job, gate = lost.job, stage.gate()
    following = stage.send("guarded_waiting", job, [{"gate": str(gate)}])
    second = stage.started(job, 2)
    assert second.at - lost.start.at > TTL_SECONDS - 1
    assert second.fence > lost.start.fence
    yield
    with pytest.raises(LeaseLost):
        lost.result.get(timeout=60)
    assert stage.row(job) == ("running", second.fence)
    gate.touch()
    assert following.get(timeout=60) == f"done:{job}"
    assert stage.row(job) == ("done", second.fence)
    stage.assert_settled()


def test_16_a_child_stopped_beyond_its_lease_wakes_up_as_the_loser(stage: Stage) -> None:
    stage.pair()
    lost = stage.begin("guarded", {"seconds": 0.5})
    os.kill(lost.start.pid, signal.SIGSTOP)
    with losing(stage, lost):
        os.kill(lost.start.pid, signal.SIGCONT)


@on_all_pools
def test_18_a_c_call_that_keeps_the_interpreter_is_found_out_at_its_end(
    stage: Stage, pool: str
) -> None:
    """No thread could renew: the lease is over, the run notices it, and the row refuses it."""
    need_pool(pool)
    stuck = stage.worker(
        pool=pool, concurrency=1 if pool == "solo" else 2, options=("-Q", "first"), wait=False
    )
    stage.worker()
    stuck.wait_ready()
    script = {"kind": "stuck", "seconds": TTL_SECONDS + 2}
    lost = stage.begin("guarded", script, queue="first")
    with losing(stage, lost):
        pass  # It ends by itself.


@pytest.mark.parametrize(
    ("task", "check"), by_day(("guarded", True), ("guarded", False), ("skip", True))
)
@pytest.mark.stage(ttl=TTL_SECONDS, visibility=TTL_SECONDS + 1)
def test_the_loser_does_not_take_the_redelivery_of_its_message_along(
    stage: Stage, task: str, check: bool
) -> None:
    """On Redis who acknowledges one delivery acknowledges all of them."""
    assert isinstance(stage.broker, RedisBroker)
    stage.pair()
    job, _, first = stage.begin(
        task, {"seconds": 0.5, "check": check}, {"gate": str(stage.gate())}, {}
    )
    deliveries = partial(stage.broker.client.hkeys, "unacked")
    os.kill(first.pid, signal.SIGSTOP)
    second = stage.started(job, 2)
    tags = set(deliveries())
    assert len(tags) == 1
    os.kill(first.pid, signal.SIGCONT)
    until(lambda: tags.isdisjoint(deliveries()), "the acknowledgement of the first delivery")
    stage.kill(second.pid)
    third = stage.started(job, 3)
    until(lambda: stage.ledger.entries("end", run=third.run), "the end of the last run")
    stage.assert_settled()


STOPS = {"STAGE_STOPS": "1"}


@pytest.mark.parametrize("kind", ["sleep", "compute"])
@pytest.mark.stage(ttl=6)
def test_a_body_whose_lease_is_cleared_leaves_and_the_job_is_done_again(
    stage: Stage, kind: str
) -> None:
    """``on_loss="stop"``, in the main thread of a child, and in one of a pool of threads."""
    stage.worker(pool="prefork" if kind == "sleep" else "threads", environment=STOPS)
    job, result, start = stage.begin("stops", {"kind": kind, "seconds": 60}, {})
    assert stage.row(job) == ("running", start.fence)
    cleared = stage.ledger.clock()
    assert stage.redis.delete(stage.lock_key(f"job:{job}"))
    until(lambda: stage.ledger.entries("broke", run=start.run), "the end of the body")
    assert stage.ledger.entries("broke", run=start.run)[0].at - cleared < 6 / 3 + 3
    stage.assert_well(job, result, runs=2)
    fence = stage.row(job)[1]
    assert fence is not None
    assert fence > start.fence


@pytest.mark.parametrize("pool", by_day("gevent", "eventlet"))
def test_a_worker_whose_threads_are_greenlets_does_not_start_with_such_a_task(
    stage: Stage, pool: str
) -> None:
    need_pool(pool)
    worker = stage.worker(pool=pool, environment=STOPS, wait=False)
    until(lambda: not worker.running, "its end")
    assert "gevent and eventlet cannot stop task stops at a loss. Use another pool" in worker.text()


@pytest.mark.stage(ttl=TTL_SECONDS)
def test_a_job_that_always_works_for_longer_than_max_hold_is_given_up(stage: Stage) -> None:
    """Each run starts over, and counts as one that has died."""
    stage.worker()
    job, result, _ = stage.begin("limited", {"seconds": 2.5, "check": True})
    with pytest.raises(TooManyAttempts):
        result.get(timeout=60)
    assert len(stage.ledger.entries("start", job=job)) == 2
    assert stage.row(job)[0] == "failed"
    assert "held for longer than max_hold" in stage.workers[0].text()
    stage.assert_settled()


# ------------------------------------------------------------------------------ handed on


LONG_SECONDS = 60


def click(stage: Stage, job: int, script: object = (), ttl: float = 30) -> str:
    """What a view answers: "409", or the fence of the lease that its job got."""
    return stage.script(f"""
from django_tasklock import LockNotAcquired, lock
from tests.stage.tasks import guarded
try:
    with lock("job:{job}", ttl={ttl}) as lease:
        guarded.apply_async([{job}, {script!r}], lease=lease)
        print(lease.fence)
except LockNotAcquired:
    print(409)
""").strip()


@on_both_brokers
def test_a_second_click_is_refused_until_the_job_has_ended(stage: Stage) -> None:
    # Given a click whose job waits in the queue
    job, gate = stage.job(), stage.gate()
    fence = click(stage, job, [{"gate": str(gate)}])
    assert click(stage, job) == "409"

    # I expect the job to run under the lease of the click
    stage.worker()
    assert str(stage.started(job).fence) == fence
    assert click(stage, job) == "409"

    # And clicks to be refused until it has ended, and no longer
    gate.touch()
    stage.completed(job)
    stage.assert_settled()
    stage.assert_done_once(job)
    assert int(click(stage, job)) > int(fence)


@pytest.mark.nightly
@pytest.mark.stage(visibility=2)
def test_killed_before_the_run_adopts_the_next_delivery_does(stage: Stage) -> None:
    worker, job = stage.worker(), stage.job()
    stage.begin("skip", {"seconds": LONG_SECONDS}, {})
    fence = click(stage, job, ttl=LONG_SECONDS)
    stage.kill(worker.pid)
    stage.worker(concurrency=2)
    assert str(stage.started(job).fence) == fence
    stage.assert_settled()
    stage.assert_done_once(job)


@shared_on_both_brokers
def test_killed_after_the_run_adopted_the_lock_is_free_at_once(shared: Stage) -> None:
    """The message comes again, and its handle is spent."""
    job = shared.job()
    fence = click(shared, job, [{"seconds": LONG_SECONDS}, {}], ttl=LONG_SECONDS)
    first = shared.started(job)
    assert str(first.fence) == fence
    shared.kill(first.pid)
    assert shared.started(job, 2).fence > first.fence
    shared.completed(job)
    shared.assert_settled()
    shared.assert_done_once(job)


# ------------------------------------------------------------------------------ tenants


MORE_SECONDS = 1.6 * TTL_SECONDS


def send_as(stage: Stage, tenant: str, job: int, *script: dict[str, Any]) -> Any:
    return stage.send("of_tenant", job, script, headers={"tenant": tenant})


@pytest.mark.stage(ttl=TTL_SECONDS, visibility=TTL_SECONDS)
def test_36_a_tenants_job_keeps_its_lease_and_leaves_nothing(stage: Stage) -> None:
    # Given a job that lasts longer than its lease, and than the broker waits for it: its message is
    # delivered again while it runs
    stage.environment["STAGE_KEY_FUNCTION"] = MAKE_KEY
    stage.pair(concurrency=2)
    job = stage.job()
    mine = send_as(stage, "acme", job, {"seconds": MORE_SECONDS, "check": True})
    stage.started(job)

    # I expect the job of that name of another tenant to run beside it, and a second message to be
    # skipped
    other = send_as(stage, "beta", job)
    again = send_as(stage, "acme", job)
    assert other.get(timeout=60) == f"done:{job}"
    assert again.get(timeout=60)["holder"] == mine.id

    # And the job to run once, and to leave nothing
    assert mine.get(timeout=60) == f"done:{job}"
    assert len(stage.ledger.entries("start", job=job, task_id=mine.id)) == 1
    stage.assert_settled()
    assert list(stage.redis.scan_iter(match="*lock index")) == []


@pytest.mark.stage(ttl=30.0)
def test_36_a_tenants_job_whose_child_is_killed_runs_again_at_once(stage: Stage) -> None:
    stage.environment["STAGE_KEY_FUNCTION"] = MAKE_KEY
    stage.worker()
    job = stage.job()
    sent = send_as(stage, "acme", job, {"seconds": 60}, {})
    killed = stage.kill(stage.started(job).pid)
    # The main process clears the lease of the dead child: at once, and not when it would end
    again = stage.started(job, 2)
    assert again.at - killed < 10
    assert sent.get(timeout=60) == f"done:{job}"
    assert "was cleared by the worker" in stage.workers[0].text()
    stage.assert_settled()
    assert list(stage.redis.scan_iter(match="*lock index")) == []
