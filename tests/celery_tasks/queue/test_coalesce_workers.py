"""on_conflict="coalesce" with real workers: bursts of changes to counters."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
COUNTERS = 30


class Counter:
    """One job's counter, and its changes."""

    def __init__(self, stage: Stage, job: int) -> None:
        self.stage = stage
        self.job = job
        self.value = 0

    def change(self, **options: Any) -> Any:
        """Change the counter, and send the task that is to see it."""
        self.value = int(self.stage.redis.incr(f"counter:{self.job}"))
        return self.stage.client.send_task("count", [self.job], options)

    def seen(self) -> list[int]:
        """What the runs saw when they started, in order."""
        return [entry.saw for entry in self.stage.ledger.entries("saw", job=self.job)]

    def running(self, result: Any) -> None:
        """Wait until the run of this message has started."""
        found = {"job": self.job, "task_id": result.id}
        until(lambda: self.stage.ledger.entries("saw", **found), "it has started", 30)


def burst(counter: Counter, chance: random.Random) -> None:
    """Changes whenever they come; runs as long as they like."""
    for _ in range(chance.randrange(1, 9)):
        counter.change(seconds=round(chance.uniform(0.01, 0.12), 3))
        time.sleep(chance.choice([0, 0, 0.01, chance.uniform(0, 0.15)]))


@on_both_brokers
def test_the_last_change_of_a_burst_is_seen(on_stage: OnStage, broker: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    stage = on_stage(broker)
    stage.worker(concurrency=4)
    counters = [Counter(stage, number) for number in range(COUNTERS)]
    chances = [random.Random(f"{seed}-{counter.job}") for counter in counters]
    with ThreadPoolExecutor(10) as senders:
        assert list(senders.map(burst, counters, chances)) == [None] * COUNTERS
    stage.assert_settled(60)
    for counter in counters:
        seen = counter.seen()
        assert seen == sorted(seen)
        assert seen[-1] == counter.value
    runs = sum(len(counter.seen()) for counter in counters)
    assert COUNTERS < runs < sum(counter.value for counter in counters)


@on_both_brokers
def test_a_follow_up_whose_child_is_killed_runs_again(on_stage: OnStage, broker: str) -> None:
    stage = on_stage(broker)
    stage.worker(concurrency=2)
    counter, first, second = Counter(stage, 1), stage.gate(), stage.gate()
    counter.running(counter.change(gate=str(first)))
    follow_up = counter.change(gate=str(second))
    stage.deliveries(follow_up.id, 2)
    first.touch()
    counter.running(follow_up)
    victim = stage.ledger.entries("saw", job=1, task_id=follow_up.id)[0].pid
    # What comes while it runs, and while it is dead, is followed up as well.
    third = counter.change()
    stage.deliveries(third.id, 2)
    stage.kill(victim)
    second.touch()
    stage.assert_settled(60)
    assert follow_up.get(timeout=5) == 3
    assert counter.seen()[:2] == [1, 2]
    assert counter.seen()[-1] == 3
    counted = [entry.task_id for entry in stage.ledger.entries("counted", job=1)]
    assert len(counted) == len(set(counted))
