"""``--autoscale=4,1``: a pool that grows and shrinks while locked tasks run."""

from __future__ import annotations

import pytest

from tests.nightly.surroundings.at_work import TTL_SECONDS, killed_at_work
from tests.stage.fixtures import MakeStage
from tests.waiting import until

pytestmark = pytest.mark.slow
MOST = 4
ROUNDS = 2


def test_a_pool_that_shrinks_ends_no_run_and_counts_none_as_dead(make_stage: MakeStage) -> None:
    stage = make_stage(ttl=TTL_SECONDS)
    stage.environment["AUTOSCALE_KEEPALIVE"] = "1"  # seconds until an idle child may go
    worker = stage.worker(options=(f"--autoscale={MOST},1",))
    for _ in range(ROUNDS):
        gate, stays = stage.gate(), stage.gate()
        short = [stage.job() for _ in range(MOST - 1)]
        long = stage.job()
        # One death of a run of ``once`` is one too many: it would fail with TooManyAttempts.
        results = [stage.send("once", job, [{"gate": str(gate)}]) for job in short]
        results.append(stage.send("once", long, [{"gate": str(stays)}]))
        for job in [*short, long]:
            stage.started(job)
        grown = set(worker.children)
        assert len(grown) == MOST
        gate.touch()
        # All but the one that is at work go.
        until(lambda: len(worker.children) == 1, "a smaller pool", every=0.05)
        busy = stage.started(long).pid
        assert worker.children == [busy]
        assert stage.held() == [f"job:{long}"]
        stays.touch()
        for job, result in zip([*short, long], results, strict=True):
            assert result.get(timeout=60) == f"done:{job}"
            stage.assert_done_once(job)
            assert len(stage.ledger.runs(job=job)) == 1
        stage.assert_settled()
    assert "was cleared" not in worker.text()
    killed_at_work(stage)
