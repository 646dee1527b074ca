"""``lock_limits`` with real workers, whose children are killed as well."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.stage.fixtures import on_both_brokers
from tests.stage.ledger import Run
from tests.stage.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


def end(run: Run) -> float:
    """When it was over; of one that has killed itself, when it was about to."""
    return run.end if run.completed else float(run.start.at + run.start.planned)


def most_at_once(runs: list[Run]) -> int:
    return max(sum(one.start.at <= run.start.at < end(one) for one in runs) for run in runs)


@on_both_brokers
def test_as_many_run_at_once_as_each_limit_says(stage: Stage) -> None:
    # Given jobs of two tenants, of each of which two may run at once, and three of both together;
    # some are sent twice, and some of their children are killed
    chance = random.Random(7)
    stage.worker(concurrency=6)
    jobs = [stage.job() for _ in range(22)]
    for job in jobs + jobs[:4]:
        step = {"seconds": round(chance.uniform(0.5, 1.5), 2)}
        script: list[dict[str, Any]] = [step | {"then": "kill"}, step] if job % 5 == 0 else [step]
        stage.send("of_tenants", job, script)
    for job in jobs:
        stage.completed(job, 120)
    stage.assert_settled()

    # I expect each to be done once, and never more at once
    for job in jobs:
        stage.assert_done_once(job)
    runs = stage.ledger.runs()
    tenants = [[run for run in runs if run.start.job % 2 == tenant] for tenant in (0, 1)]
    assert len(runs) - len(jobs) == len([job for job in jobs if job % 5 == 0]), "as many died"
    assert (most_at_once(runs), *map(most_at_once, tenants)) == (3, 2, 2)

    # And not to take much longer than that takes
    def seconds(runs: list[Run]) -> float:
        return sum(end(run) - run.start.at for run in runs)

    took = max(map(end, runs)) - min(run.start.at for run in runs)
    least = max(seconds(runs) / 3, *(seconds(each) / 2 for each in tenants))
    refused = stage.script("""
from django_tasklock import locks
print(sum(event.count for event in locks.history(limit=10000) if event.kind == "refused"))
""")
    print(f"ratio {took / least:.2f}: {took:.1f} s instead of {least:.1f} s; refusals: {refused}")
    assert took < 3 * least


@pytest.mark.stage(ttl=300)
def test_the_permits_of_a_killed_child_are_free_within_a_second(stage: Stage) -> None:
    stage.worker()
    job, _, start = stage.begin("of_tenants_early", {"seconds": 60})
    assert stage.held() == sorted([f"job:{job}", f"tenant:{job % 2}#1", "partner#1"])
    killed = stage.kill(start.pid)
    until(lambda: stage.held() == [], "nothing is held", 5)
    print(f"after {stage.ledger.clock() - killed:.2f} s")
