"""What tasks can do, with real workers that are killed as well."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.stage.brokers import RedisBroker
from tests.stage.fixtures import shared_on_both_brokers
from tests.stage.stage import Stage
from tests.steps import Meanwhile
from tests.waiting import until

pytestmark = pytest.mark.slow
LONG = {"seconds": 60}


# ------------------------------------------------------------------------------ coalesce


COUNTERS = 30


class Counter:
    """One job's counter, and its changes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.job = stage.job()
        self.value = 0

    def change(self, **step: Any) -> AsyncResult[Any]:
        """Change the counter, and send the task that is to see it."""
        self.value = int(self.stage.redis.incr(f"counter:{self.job}"))
        return self.stage.send("counts", self.job, [step])

    def change_at_random(self, chance: random.Random) -> None:
        """Changes whenever they come; runs as long as they like."""
        for _ in range(chance.randrange(2, 9)):
            self.change(seconds=round(chance.uniform(0.01, 0.12), 3))
            time.sleep(chance.choice([0, 0, 0.01, chance.uniform(0, 0.15)]))

    def seen(self) -> list[int]:
        """What the runs saw when they started, in order."""
        return [entry.saw for entry in self.stage.ledger.entries("saw", job=self.job)]


@shared_on_both_brokers
def test_the_last_change_of_a_burst_is_seen(shared: Stage) -> None:
    # Given counters that change at random, with a call after each change; the first one's run lasts
    # until the changes are over
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    counters = [Counter(shared) for _ in range(COUNTERS)]
    chances = [random.Random(f"{seed}-{number}") for number in range(COUNTERS)]
    counters[0].change(gate=str(shared.gate()))
    shared.started(counters[0].job)
    with ThreadPoolExecutor(10) as senders:
        list(senders.map(Counter.change_at_random, counters, chances))
    shared.open_gates()
    shared.assert_settled(60)

    # I expect the last run for each counter to have seen its last change
    for counter in counters:
        seen = counter.seen()
        assert seen == sorted(seen)
        assert seen[-1] == counter.value

    # And calls to be coalesced
    runs = sum(len(counter.seen()) for counter in counters)
    assert COUNTERS < runs < sum(counter.value for counter in counters)


# ------------------------------------------------------------------------------ other options


@shared_on_both_brokers
def test_a_run_beside_the_holder_is_killed_and_runs_again(shared: Stage) -> None:
    """``on_conflict="run"``."""
    second = shared.gate()
    with shared.busy("watched") as (job, holder, _):
        beside = shared.send("watched", job, [LONG, {"gate": str(second)}])
        for number in (2, 3):
            start = shared.started(job, number)
            assert (start.task_id, start.fence) == (beside.id, None)
            assert shared.held() == [f"job:{job}"]
            if number == 2:
                shared.kill(start.pid)
        second.touch()
        assert beside.get(timeout=60) == f"done:{job}"
        assert shared.held() == [f"job:{job}"]
    assert holder.get(timeout=60) == f"done:{job}"
    ended = [entry.task_id for entry in shared.ledger.entries("end", job=job)]
    assert ended == [beside.id, holder.id]
    shared.assert_settled()
    assert any("runs all the same" in worker.text() for worker in shared.workers)


@shared_on_both_brokers
def test_as_many_jobs_of_a_tenant_run_at_once_as_may(shared: Stage) -> None:
    """Of locks with slots."""
    jobs = [shared.job() for _ in range(10)]
    sent = [shared.send("permitted", job, [{"seconds": 0.5}]) for job in jobs]
    # One child is killed at work: its permit is free for another at once, and its job runs again.
    shared.kill(shared.started(jobs[0]).pid)
    for result in sent:
        assert result.get(timeout=120).startswith("done:")
    shared.assert_settled(60)
    runs = [run for job in jobs for run in shared.ledger.runs(job=job)]
    assert sum(run.completed for run in runs) == len(jobs), "no job twice"
    beside = [
        sum(other.start.at <= run.start.at and other.lasts_into(run) for other in runs)
        for run in runs
    ]
    assert max(beside) == 2, "a run counts itself"
    assert {run.start.slot for run in runs} == {1, 2}


# ------------------------------------------------------------------------------ the doctor


@pytest.mark.stage(ttl=300)
def test_what_was_lost_is_found_and_sent_again_once(stage: Stage) -> None:
    assert isinstance(stage.broker, RedisBroker)
    # Given a child that is killed with acks_late off, whose job Celery fails; two messages that are
    # lost with their worker,
    first = stage.worker(concurrency=3)
    tasks = ("working_early", "working_early", "working")
    failed, early, late = (stage.begin(task, LONG, {"seconds": 0.1}) for task in tasks)
    stage.kill(failed.start.pid)
    until(lambda: stage.row(failed.job)[0] == "failed", "its row is failed", 10)
    until(lambda: len(stage.held()) == 2, "its lock is cleared", 10)
    stage.kill(first.pid)
    stage.broker.client.flushdb()
    # a row that somebody set by hand, and a job at work
    by_hand = stage.job("working")
    stage.worker(concurrency=4)
    with stage.busy("working") as (long, _, _):
        # I expect the doctor to find what was lost. The main process was killed and could clear
        # nothing: its lease still has minutes.
        kinds = {int(problem["pk"]): problem["kind"] for problem in stage.doctor()}
        assert kinds == {early.job: "owner gone", late.job: "owner gone", by_hand: "lost work"}
        stage.redis.delete(*(stage.lock_key(f"job:{each.job}") for each in (early, late)))
        # And two at the same time to send each row once, once they are told by which of the two
        # tasks, and to leave nothing to do
        sends = ("--requeue", "--task", "*working")
        both = [Meanwhile(partial(stage.doctor, *sends)) for _ in range(2)]
        said = [problem for each in both for problem in each.result()]
        assert {problem["requeued"] for problem in said} <= {"sent again", "sent a moment ago"}
        sent = [int(problem["pk"]) for problem in said if problem["requeued"] == "sent again"]
        assert sorted(sent) == sorted([early.job, late.job, by_hand])
        for job in sent:
            stage.completed(job)
    stage.assert_settled(60)
    assert stage.doctor() == []
    for job in (*sent, long):
        stage.assert_done_once(job)
        assert len(stage.ledger.runs(job=job)) == (2 if job in (early.job, late.job) else 1)
