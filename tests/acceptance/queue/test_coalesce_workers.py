"""on_conflict="coalesce" with real workers: bursts of changes to counters."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import celery
import pytest

from tests.acceptance.hard_cases.conftest import on_both_brokers
from tests.acceptance.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
SEED = int(os.environ.get("COALESCE_SEED", "0")) or random.randrange(1, 2**32)
LOOSE, STRICT = 85, 15
"""bursts on each of the brokers: 200 in all"""


class Counter:
    """One job's counter, its changes, and the messages that tell of them."""

    def __init__(self, stage: Stage, job: int) -> None:
        self.stage = stage
        self.job = job
        self.value = 0
        self.results: list[Any] = []

    def change(self, task: str = "count", **options: Any) -> Any:
        """Change the counter, and send the task that is to see it."""
        self.value = int(self.stage.redis.incr(f"counter:{self.job}"))
        result = self.stage.client.send_task(task, [self.job], options)
        self.results.append(result)
        return result

    def seen(self) -> list[int]:
        """What the runs saw when they started, in order."""
        return [entry.saw for entry in self.stage.ledger.entries("saw", job=self.job)]

    def running(self, result: Any) -> None:
        """Wait until the run of this message has started."""
        found = {"job": self.job, "task_id": result.id}
        until(lambda: self.stage.ledger.entries("saw", **found), "it has started", 30)

    def refused(self) -> int:
        """How many of the messages were coalesced."""
        ready = [result for result in self.results if result.ready()]
        return sum(isinstance(result.result, dict) for result in ready)


def burst(counter: Counter, chance: random.Random) -> None:
    """Changes whenever they come; runs as long as they like."""
    for _ in range(chance.randrange(1, 9)):
        counter.change(seconds=round(chance.uniform(0.01, 0.12), 3))
        time.sleep(chance.choice([0, 0, 0.01, chance.uniform(0, 0.15)]))


def burst_during_one_run(counter: Counter, chance: random.Random) -> None:
    """All changes but the first come, and are told of, while that one's run is on."""
    gate = counter.stage.gate()
    counter.running(counter.change(gate=str(gate)))
    more = chance.randrange(1, 12)
    for _ in range(more):
        counter.change()
    until(lambda: counter.refused() == more - 1, "all but one are refused", 60, every=0.1)
    gate.touch()


@on_both_brokers
def test_the_last_change_of_a_burst_is_seen_and_has_one_follow_up(
    on_stage: OnStage, broker: str
) -> None:
    """A hundred random bursts. ``COALESCE_SEED=…`` makes the same ones again."""
    print(f"COALESCE_SEED={SEED}")
    stage = on_stage(broker)
    stage.worker(concurrency=4)
    chances = [random.Random(f"{SEED}-{broker}-{number}") for number in range(LOOSE + STRICT)]
    counters = [Counter(stage, number) for number in range(LOOSE + STRICT)]
    with ThreadPoolExecutor(10) as loose, ThreadPoolExecutor(2) as strict:
        bursts = [
            (strict if number < STRICT else loose).submit(
                burst_during_one_run if number < STRICT else burst, counter, chance
            )
            for number, (counter, chance) in enumerate(zip(counters, chances, strict=True))
        ]
        for done in bursts:
            done.result()
    stage.assert_settled(60)
    for number, counter in enumerate(counters):
        seen = counter.seen()
        assert seen == sorted(seen)
        assert seen[-1] == counter.value
        if number < STRICT:
            assert seen == [1, counter.value]
    runs = sum(len(counter.seen()) for counter in counters)
    changes = sum(counter.value for counter in counters)
    print(f"{changes} changes, {runs} runs")
    assert len(counters) < runs < changes


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


@pytest.mark.skipif(
    not hasattr(celery.Task, "retry_on_worker_lost"), reason="this Celery does not retry it"
)
@on_both_brokers
def test_a_follow_up_whose_child_is_killed_is_retried(on_stage: OnStage, broker: str) -> None:
    """``retry_on_worker_lost``: a new message, with the headers of the one that was refused."""
    stage = on_stage(broker)
    stage.worker(concurrency=2)
    counter, first, second = Counter(stage, 1), stage.gate(), stage.gate()
    counter.running(counter.change("count_retried", gate=str(first)))
    follow_up = counter.change("count_retried", gate=str(second))
    stage.deliveries(follow_up.id, 2)
    first.touch()
    counter.running(follow_up)
    stage.kill(stage.ledger.entries("saw", job=1, task_id=follow_up.id)[0].pid)
    second.touch()
    assert follow_up.get(timeout=60) == 2
    stage.assert_settled(60)
    assert counter.seen() == [1, 2, 2]


def test_a_follow_up_that_is_revoked_is_replaced_by_the_next(on_stage: OnStage) -> None:
    """Later calls do not rely on a message that will never run."""
    stage = on_stage()
    stage.worker(concurrency=2)
    counter, gate = Counter(stage, 1), stage.gate()
    counter.running(counter.change(gate=str(gate)))
    follow_up = counter.change()
    stage.deliveries(follow_up.id, 2)
    stage.client.control.revoke(follow_up.id, reply=True)
    revoked = {"task_id": follow_up.id}
    until(lambda: stage.ledger.entries("revoked", **revoked), "it is discarded", 30)
    stage.client.control.ping(timeout=5)  # An answer: the worker has done all that it had to.
    last = counter.change()
    stage.deliveries(last.id, 2)
    gate.touch()
    assert last.get(timeout=60) == counter.value
    stage.assert_settled(60)


def test_a_follow_up_whose_worker_is_killed_while_it_waits_runs_once(on_stage: OnStage) -> None:
    """It waits in the memory of a worker that is killed; the run goes on in another one."""
    stage = on_stage("rabbitmq")
    stage.worker(options=("-Q", "apart"))
    waiting = stage.worker()
    counter, gate = Counter(stage, 1), stage.gate()
    stage.redis.incr("counter:1")
    options = {"gate": str(gate)}
    running = stage.client.send_task("count", [1], options, queue="apart")
    counter.running(running)
    follow_up = counter.change()
    stage.deliveries(follow_up.id, 2)
    stage.kill(waiting.pid)
    stage.worker()
    stage.deliveries(follow_up.id, 4)
    gate.touch()
    assert follow_up.get(timeout=60) == 2
    stage.assert_settled()
    assert counter.seen() == [1, 2]


def test_a_redelivery_of_a_long_run_does_not_count_as_its_follow_up(on_stage: OnStage) -> None:
    """The run's message is delivered again and again, as Redis does after its visibility timeout;
    when the run has ended, such a redelivery may be the first to ask for the lock."""
    stage = on_stage(visibility=1, ttl=6)
    stage.worker(concurrency=3)
    counters = [Counter(stage, job) for job in range(3)]
    longs = [counter.change(seconds=3.0) for counter in counters]
    for counter, long in zip(counters, longs, strict=True):
        counter.running(long)
        stage.deliveries(long.id, 2)
    for counter in counters:
        counter.change()
    stage.assert_settled(60)
    assert [counter.seen() for counter in counters] == [[1, 2]] * 3
