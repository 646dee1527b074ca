"""Each pool of Celery: a double is skipped, and the job of a process that was killed is done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nightly.surroundings.at_work import TTL_SECONDS, killed_at_work
from tests.stage.fixtures import MakeStage, need_pool
from tests.stage.ledger import Entry
from tests.waiting import until

pytestmark = pytest.mark.slow
MOST, ROUNDS = 4, 2


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_each_pool_locks_and_recovers(make_stage: MakeStage, pool: str) -> None:
    # Given a worker with this pool, and another one that can go on for it
    need_pool(pool)
    # RabbitMQ delivers the messages of a dead worker at once.
    stage = make_stage("rabbitmq", ttl=TTL_SECONDS)
    first, at_once = f"{stage.queue}-first", 1 if pool == "solo" else 2
    doomed = stage.worker(pool=pool, concurrency=at_once, options=("-Q", first), wait=False)
    other = stage.worker(wait=False)
    doomed.wait_ready()
    other.wait_ready()

    # When a child is killed, or the worker where it has none, I expect what `killed_at_work` says
    def kill(start: Entry) -> None:
        assert (start.pid == doomed.pid) is (pool != "prefork")
        stage.kill(start.pid)
        if pool != "prefork":
            answers: Any = stage.client.control.add_consumer(
                first, destination=["w2@hard"], reply=True, timeout=60, limit=1
            )
            assert "ok" in answers[0]["w2@hard"]

    try:
        killed_at_work(stage, kill, queue=first)
    finally:
        doomed.end()
        other.end()
        stage.broker.drop(first)


def test_a_pool_that_shrinks_ends_no_run_and_counts_none_as_dead(make_stage: MakeStage) -> None:
    """``--autoscale``, while locked tasks run."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.environment["AUTOSCALE_KEEPALIVE"] = "1"  # seconds until an idle child may go
    worker = stage.worker(options=(f"--autoscale={MOST},1",))
    for _ in range(ROUNDS):
        gate, stays = stage.gate(), stage.gate()
        short, long = [stage.job() for _ in range(MOST - 1)], stage.job()
        # One death of a run of ``once`` is one too many: it would fail with TooManyAttempts.
        results = [stage.send("once", job, [{"gate": str(gate)}]) for job in short]
        results.append(stage.send("once", long, [{"gate": str(stays)}]))
        for job in [*short, long]:
            stage.started(job)
        assert len({*worker.children}) == MOST
        gate.touch()
        # All but the one that is at work go.
        until(lambda: len(worker.children) == 1, "a smaller pool", every=0.05)
        assert worker.children == [stage.started(long).pid]
        assert stage.held() == [f"job:{long}"]
        stays.touch()
        for job, result in zip([*short, long], results, strict=True):
            assert result.get(timeout=60) == f"done:{job}"
            stage.assert_done_once(job)
            assert len(stage.ledger.runs(job=job)) == 1
        stage.assert_settled()
    assert "was cleared" not in worker.text()
    killed_at_work(stage)
