"""``lock_slots`` with real workers: two jobs of a tenant at once, and three of a large one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.ledger import Run
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]

SLOTS = {"small": 2, "large": 3}
JOBS = 12
"""jobs of each tenant"""


def at_once(runs: list[Run]) -> int:
    """How many of the runs went on at the same time, at most."""
    return max(
        1
        + sum(
            other.start.at <= run.start.at and other.lasts_into(run)
            for other in runs
            if other is not run
        )
        for run in runs
    )


@on_both_brokers
def test_as_many_jobs_of_a_tenant_run_at_once_as_may(on_stage: OnStage, broker: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, stage = random.Random(seed), on_stage(broker)
    stage.worker(concurrency=4)
    stage.worker(concurrency=4)
    jobs = {tenant: [stage.job() for _ in range(JOBS)] for tenant in SLOTS}
    sent: list[Any] = []
    for pair in zip(*jobs.values(), strict=True):
        for tenant, job in zip(jobs, pair, strict=True):
            script = [{"kind": "sleep", "seconds": round(chance.uniform(0.3, 0.8), 2)}]
            sent.append(stage.client.send_task("tenants_job", [job, tenant, script]))

    def runs_of(tenant: str) -> list[Run]:
        return [run for job in jobs[tenant] for run in stage.ledger.runs(job=job)]

    # One child is killed at work: its permit is free for another at once, and its job runs again.
    first = until(lambda: stage.ledger.entries("start", job=jobs["small"][0]), "the first job", 30)
    stage.kill(first[0].pid)
    for result in sent:
        assert result.get(timeout=120).startswith("done:")
    stage.assert_settled(60)
    for tenant, slots in SLOTS.items():
        runs = runs_of(tenant)
        assert {run.start.job for run in runs if run.completed} == set(jobs[tenant])
        assert sum(run.completed for run in runs) == JOBS, "no job twice"
        used = {entry.slot for entry in stage.ledger.entries("permit", tenant=tenant)}
        assert used == set(range(1, slots + 1))
        assert at_once(runs) == slots
