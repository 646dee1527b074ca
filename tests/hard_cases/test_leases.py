"""Leases that are kept while a body works, and leases that are lost: cases 16 and 18."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from django_tasklock import LeaseLost
from tests.nights import by_day
from tests.stage.brokers import RedisBroker
from tests.stage.fixtures import need_pool, on_all_pools
from tests.stage.stage import Begun, Stage
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
