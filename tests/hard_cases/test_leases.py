"""Leases that are kept while a body works, and leases that are lost: cases 16 and 18."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from django_tasklock import LeaseLost
from tests.hard_cases.brokers import RedisBroker
from tests.hard_cases.conftest import MakeStage, need_pool, on_all_pools
from tests.hard_cases.stage import Begun, Stage
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow
TTL_SECONDS = 5.0


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


def test_16_a_child_stopped_beyond_its_lease_wakes_up_as_the_loser(make_stage: MakeStage) -> None:
    stage = make_stage(ttl=TTL_SECONDS)
    stage.pair()
    lost = stage.begin("guarded", {"seconds": 0.5})
    os.kill(lost.start.pid, signal.SIGSTOP)
    with losing(stage, lost):
        os.kill(lost.start.pid, signal.SIGCONT)


@on_all_pools
def test_18_a_c_call_that_keeps_the_interpreter_is_found_out_at_its_end(
    make_stage: MakeStage, pool: str
) -> None:
    """No thread could renew: the lease is over, the run notices it, and the row refuses it."""
    need_pool(pool)
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker(pool=pool, concurrency=1 if pool == "solo" else 2, options=("-Q", "first"))
    stage.worker()
    script = {"kind": "stuck", "seconds": TTL_SECONDS + 2}
    lost = stage.begin("guarded", script, queue="first")
    with losing(stage, lost):
        pass  # It ends by itself.


@on_all_pools
def test_18_a_lease_is_kept_while_the_body_works_longer_than_it_lasts(
    make_stage: MakeStage, pool: str
) -> None:
    """Sleep, a subprocess, a CPU loop: renewed under every pool, by the same holder throughout. A
    lock in the body of a plain task, beside these, says which task holds it."""
    need_pool(pool)
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker(pool=pool, concurrency=1 if pool == "solo" else 4)
    plain = [stage.send("plain_with_a_lock", stage.job()) for _ in range(2)]
    for kind in ("sleep", "child", "compute"):
        job, result, start = stage.begin(
            "guarded", {"kind": kind, "seconds": TTL_SECONDS + 1.5, "check": True}
        )
        key = stage.lock_key(f"job:{job}")
        lease = stage.redis.get(key)
        until(lambda: stage.ledger.clock() > start.at + TTL_SECONDS + 0.5)  # noqa: B023
        assert lease is not None
        assert stage.redis.get(key) == lease, kind
        assert stage.ledger.completions(job=job) == 0, "too late to see"
        stage.assert_well(job, result)
    for result in plain:
        assert result.get(timeout=60) == ["plain_with_a_lock", result.id]


@pytest.mark.parametrize(
    ("task", "check"), by_day(("guarded", True), ("guarded", False), ("skip", True))
)
def test_the_loser_does_not_take_the_redelivery_of_its_message_along(
    make_stage: MakeStage, task: str, check: bool
) -> None:
    """On Redis who acknowledges one delivery acknowledges all of them."""
    stage = make_stage(ttl=TTL_SECONDS, visibility=TTL_SECONDS + 1)
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
