"""Leases that are kept while a body works, and leases that are lost: cases 16 and 18."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from django_tasklock import LeaseLost
from tests.hard_cases.brokers import RedisBroker
from tests.hard_cases.conftest import MakeStage, need_pool, on_all_pools
from tests.hard_cases.stage import Stage
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow
TTL_SECONDS = 5.0
GREEN = ("gevent", "eventlet")


def test_16_a_child_stopped_beyond_its_lease_wakes_up_as_the_loser(make_stage: MakeStage) -> None:
    """LeaseLost; its last update touches no row; the row of the next holder is intact."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.pair()
    job, gate = stage.job(), stage.gate()
    stopped = stage.send("guarded", job, [{"seconds": 0.5}])
    first = stage.started(job)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        next_one = stage.send("guarded_waiting", job, [{"gate": str(gate)}])
        second = stage.started(job, 2)
        assert second.at - first.at > TTL_SECONDS - 1
    finally:
        os.kill(first.pid, signal.SIGCONT)
    with pytest.raises(LeaseLost):
        stopped.get(timeout=60)
    assert stage.row(job) == ("running", second.fence)
    gate.touch()
    assert next_one.get(timeout=60) == f"done:{job}"
    assert stage.row(job) == ("done", second.fence)
    assert second.fence > first.fence
    stage.assert_settled()


@on_all_pools
def test_18_a_lease_is_kept_while_the_body_works_longer_than_it_lasts(
    make_stage: MakeStage, pool: str
) -> None:
    """Sleep, a subprocess, a CPU loop: renewed under every pool, by the same holder throughout."""
    need_pool(pool)
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker(pool=pool, concurrency=1 if pool == "solo" else 3)
    # In a greenlet a CPU loop keeps all the others from doing anything: not beside them.
    together = (
        [["sleep", "child"], ["compute"]] if pool in GREEN else [["sleep", "child", "compute"]]
    )
    for kinds in together:
        keep_leases(stage, kinds)
    stage.assert_settled()


def keep_leases(stage: Stage, kinds: list[str]) -> None:
    """Run these bodies for longer than their leases last, and watch their locks meanwhile."""
    jobs = {kind: stage.job() for kind in kinds}
    for kind, job in jobs.items():
        stage.send("guarded", job, [{"kind": kind, "seconds": TTL_SECONDS + 1, "check": True}])
    leases: dict[str, set[Any]] = {kind: set() for kind in jobs}

    def ended() -> bool:
        """Whether all bodies have ended; looks at the locks of those that have not."""
        over = 0
        for kind, job in jobs.items():
            started = stage.ledger.entries("start", job=job)
            lease = stage.redis.get(stage.lock_key(f"job:{job}"))
            if stage.ledger.entries("end", "broke", job=job):
                over += 1
            elif started:
                leases[kind].add(lease)
        return over == len(jobs)

    until(ended, "all bodies have ended", 90)
    for kind, job in jobs.items():
        assert len(leases[kind]) == 1, kind
        assert None not in leases[kind], kind
        until(lambda job=job: stage.row(job)[0] == "done", f"{kind} is done", 10)  # type: ignore[misc]
        run = stage.ledger.runs(job=job)[0]
        assert run.end - run.start.at > TTL_SECONDS
        stage.assert_done_once(job)


@on_all_pools
def test_18_a_c_call_that_keeps_the_interpreter_is_found_out_at_its_end(
    make_stage: MakeStage, pool: str
) -> None:
    """No thread could renew: the lease is over, the run notices it, and the row refuses it."""
    need_pool(pool)
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker(pool=pool, concurrency=1 if pool == "solo" else 2, options=("-Q", "first"))
    stage.worker()
    job = stage.job()
    script = [{"kind": "stuck", "seconds": TTL_SECONDS + 2}]
    stuck = stage.send("guarded", job, script, queue="first")
    first = stage.started(job)
    # Another worker's run on the same row, as soon as the lease has ended.
    gate = stage.gate()
    next_one = stage.send("guarded_waiting", job, [{"gate": str(gate)}])
    second = stage.started(job, 2)
    assert second.at - first.at > TTL_SECONDS - 1
    with pytest.raises(LeaseLost):
        stuck.get(timeout=60)
    assert stage.row(job) == ("running", second.fence)
    gate.touch()
    assert next_one.get(timeout=60) == f"done:{job}"
    assert stage.row(job) == ("done", second.fence)
    stage.assert_settled()


@on_all_pools
@pytest.mark.nightly
def test_a_lock_in_the_body_of_a_plain_task_says_which_task_holds_it(
    make_stage: MakeStage, pool: str
) -> None:
    """Under every pool, also beside other tasks of the same process."""
    need_pool(pool)
    stage = make_stage()
    stage.worker(pool=pool, concurrency=1 if pool == "solo" else 3)
    script = [{"kind": "sleep", "seconds": 0.3}]
    sent = [stage.send("plain_with_a_lock", stage.job(), script) for _ in range(3)]
    for result in sent:
        assert result.get(timeout=60) == ["plain_with_a_lock", result.id]


@pytest.mark.parametrize(
    ("task", "check"), by_day(("guarded", True), ("guarded", False), ("skip", True))
)
def test_the_loser_does_not_take_the_redelivery_of_its_message_along(
    make_stage: MakeStage, task: str, check: bool
) -> None:
    """On Redis who acknowledges one delivery acknowledges all of them."""
    stage = make_stage(ttl=TTL_SECONDS, visibility=TTL_SECONDS + 1)
    stage.pair()
    job, gate = stage.job(), stage.gate()
    busy: dict[str, Any] = {"seconds": 0.5, "check": check}
    stage.send(task, job, [busy, {"gate": str(gate)}, {"seconds": 0.05}])
    first = stage.started(job)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second = stage.started(job, 2)
        tags = unacknowledged(stage)
        assert len(tags) == 1
    finally:
        os.kill(first.pid, signal.SIGCONT)
    until(lambda: not tags & unacknowledged(stage), "the acknowledgement of the first delivery")
    stage.kill(second.pid)
    third = stage.started(job, 3)
    until(lambda: stage.ledger.entries("end", run=third.run), "the end of the last run")
    stage.assert_settled()


def unacknowledged(stage: Stage) -> set[Any]:
    """The tags of the deliveries that workers have."""
    assert isinstance(stage.broker, RedisBroker)
    return set(stage.broker.client.hkeys("unacked"))
