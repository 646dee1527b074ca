"""What tasks can do, with real workers that are killed as well."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.hard_cases.brokers import RedisBroker
from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.nights import by_day
from tests.steps import Meanwhile
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]


# ------------------------------------------------------------------------------ coalesce


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


def changes(counter: Counter, chance: random.Random) -> None:
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
        assert list(senders.map(changes, counters, chances)) == [None] * COUNTERS
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


# ------------------------------------------------------------------------------ debounce


def debounced(stage: Stage, job: int, calls: int, last: Any = ()) -> list[str]:
    """Call a debounced task so many times, the last time with this script. Returns all ids."""
    said = stage.script(f"""
import django, json; django.setup()
from tests.celery_tasks.queue import tasks
task = tasks.debounced
ids = [task.delay({job}, []).id for _ in range({calls - 1})]
print(json.dumps([*ids, task.delay({job}, {list(last)!r}).id]))
""")
    ids: list[str] = json.loads(said.splitlines()[-1])
    return ids


def outcomes(stage: Stage, ids: list[str]) -> list[Any]:
    """What the calls returned, in order, once all are there."""
    return [stage.client.AsyncResult(one).get(timeout=60) for one in ids]


@on_both_brokers
@pytest.mark.parametrize("victim", by_day("child", "main"))
def test_killed_while_the_last_one_runs_it_runs_again_to_its_end(
    on_stage: OnStage, broker: str, victim: str
) -> None:
    """Also if the next burst has begun, whose last call runs after it."""
    stage = on_stage(broker, visibility=3.0 if victim == "main" else 3600.0)
    worker = stage.worker(concurrency=2)
    job, gate = stage.job(), stage.gate()
    script = [{"seconds": 60}, {"gate": str(gate)}]
    ids = debounced(stage, job, 30, script)
    start = stage.started(job)
    assert start.task_id == ids[-1]
    later = debounced(stage, job, 3)
    if victim == "child":
        stage.kill(start.pid)
    else:
        stage.kill(worker.pid)
        stage.until_dead(start.pid)
        stage.worker(concurrency=2)
    gate.touch()
    found = outcomes(stage, [*ids, *later])
    reasons = [value if isinstance(value, str) else value["reason"] for value in found]
    done = f"done:{job}"
    assert reasons == [*["debounced"] * 29, done, *["debounced"] * 2, done]
    ended = [entry.task_id for entry in stage.ledger.entries("end", job=job)]
    assert sorted(ended) == sorted([ids[-1], later[-1]])
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled(60)


@on_both_brokers
def test_a_run_beside_the_holder_is_killed_and_runs_again(on_stage: OnStage, broker: str) -> None:
    """``on_conflict="run"``."""
    stage = on_stage(broker)
    stage.worker(concurrency=3)
    job, gate, second = stage.job(), stage.gate(), stage.gate()
    holder = stage.send("watched", job, [{"gate": str(gate)}])
    stage.started(job)
    beside = stage.send("watched", job, [{"seconds": 60}, {"gate": str(second)}])
    start = stage.started(job, 2)
    assert (start.task_id, start.fence) == (beside.id, None)
    assert stage.held() == [f"job:{job}"]
    stage.kill(start.pid)
    again = stage.started(job, 3)
    assert (again.task_id, again.fence) == (beside.id, None)
    second.touch()
    assert beside.get(timeout=60) == f"done:{job}"
    assert stage.held() == [f"job:{job}"]
    gate.touch()
    assert holder.get(timeout=60) == f"done:{job}"
    ended = [entry.task_id for entry in stage.ledger.entries("end", job=job)]
    assert ended == [beside.id, holder.id]
    stage.assert_settled()
    assert any("runs all the same" in worker.text() for worker in stage.workers)


# ------------------------------------------------------------------------------ locks that cool


LONG_SECONDS = 60.0  # seconds that a body would run if it were not killed


@on_both_brokers
def test_a_killed_run_is_done_again_at_once_and_what_comes_later_is_skipped(
    on_stage: OnStage, broker: str
) -> None:
    stage = on_stage(broker)
    stage.worker()
    job = stage.job()
    result = stage.send("cooled", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}])
    stage.kill(stage.started(job).pid)
    assert result.get(timeout=LONG_SECONDS) == f"done:{job}"
    for late in [stage.send("cooled", job, [{}]) for _ in range(5)]:
        marker = late.get(timeout=LONG_SECONDS)
        assert (marker["reason"], marker["holder"]) == ("cooling_down", result.id)
    assert stage.ledger.completions(job=job) == 1
    assert stage.ledger.overlaps(job=job) == []


# ------------------------------------------------------------------------------ slots


JOBS = 10


@on_both_brokers
def test_as_many_jobs_of_a_tenant_run_at_once_as_may(on_stage: OnStage, broker: str) -> None:
    stage = on_stage(broker)
    stage.worker(concurrency=4)
    script = [{"kind": "sleep", "seconds": 0.5}]
    jobs = [stage.job() for _ in range(JOBS)]
    sent = [stage.client.send_task("tenants_job", [job, "small", script]) for job in jobs]
    # One child is killed at work: its permit is free for another at once, and its job runs again.
    stage.kill(stage.started(jobs[0]).pid)
    for result in sent:
        assert result.get(timeout=120).startswith("done:")
    stage.assert_settled(60)
    runs = [run for job in jobs for run in stage.ledger.runs(job=job)]
    assert sum(run.completed for run in runs) == JOBS, "no job twice"
    beside = [
        sum(other.start.at <= run.start.at and other.lasts_into(run) for other in runs)
        for run in runs
    ]
    assert max(beside) == 2, "a run counts itself"
    assert {entry.slot for entry in stage.ledger.entries("permit")} == {1, 2}


# ------------------------------------------------------------------------------ the doctor


DOCTOR = """
import contextlib
import tests.celery_tasks.queue.tasks
from django.core.management import execute_from_command_line
with contextlib.suppress(SystemExit):  # Something is wrong.
    execute_from_command_line(["manage.py", "locks", "doctor", "--format", "json", {}])
"""


def found(stage: Stage, option: str = "-v1") -> list[dict[str, Any]]:
    """What a doctor finds."""
    problems: list[dict[str, Any]] = json.loads(stage.script(DOCTOR.format(repr(option))))
    return problems


def test_what_was_lost_is_found_and_sent_again_once(on_stage: OnStage) -> None:
    stage = on_stage(ttl=300)
    assert isinstance(stage.broker, RedisBroker)
    # Given a child that is killed with acks_late off, whose job Celery fails; two messages that are
    # lost with their worker,
    first = stage.worker(concurrency=3)
    failed, early, late = stage.job(), stage.job(), stage.job()
    stage.send("early_work", failed, [{"seconds": 60}])
    stage.send("early_work", early, [{"seconds": 60}, {"seconds": 0.1}])
    stage.send("late_work", late, [{"seconds": 60}, {"seconds": 0.1}])
    for job in (failed, early, late):
        stage.started(job)
    stage.kill(stage.started(failed).pid)
    until(lambda: stage.row(failed)[0] == "failed", "its row is failed", 10)
    until(lambda: len(stage.held()) == 2, "its lock is cleared", 10)
    stage.kill(first.pid)
    stage.broker.client.flushdb()
    # a row that somebody set by hand, and a job at work
    by_hand, long, gate = stage.job("working"), stage.job(), stage.gate()
    stage.worker(concurrency=4)
    stage.send("late_work", long, [{"gate": str(gate)}])
    stage.started(long)
    # The main process was killed and could clear nothing: its lease still has minutes.
    kinds = {int(problem["pk"]): problem["kind"] for problem in found(stage)}
    assert kinds == {early: "owner gone", late: "owner gone", by_hand: "lost work"}
    stage.redis.delete(stage.lock_key(f"job:{early}"), stage.lock_key(f"job:{late}"))
    # Two at the same time: each row is sent by one of them, and nothing is left to do.
    both = [Meanwhile(partial(found, stage, "--requeue")) for _ in range(2)]
    said = [problem for each in both for problem in each.result()]
    assert {problem["requeued"] for problem in said} <= {"sent again", "sent a moment ago"}
    sent = [int(problem["pk"]) for problem in said if problem["requeued"] == "sent again"]
    assert sorted(sent) == sorted([early, late, by_hand])
    for job in sent:
        stage.completed(job)
    gate.touch()
    stage.assert_settled(60)
    assert found(stage) == []
    for job in (*sent, long):
        assert stage.ledger.completions(job=job) == 1
        assert len(stage.ledger.runs(job=job)) == (2 if job in (early, late) else 1)
        assert stage.row(job)[0] == "done"
