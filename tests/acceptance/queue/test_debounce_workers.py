"""``debounce`` and ``on_conflict="run"`` with real workers, that are killed as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.hard_cases.conftest import on_both_brokers
from tests.acceptance.hard_cases.stage import Stage
from tests.steps import Meanwhile
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]


def burst(stage: Stage, job: int, calls: int, last: Any = (), task: str = "debounced") -> list[str]:
    """Call the task so many times; the last call with the script ``last``. Returns all ids."""
    said = stage.script(f"""
import django, json; django.setup()
from tests.acceptance.queue import tasks
task = tasks.{task}
ids = [task.delay({job}, []).id for _ in range({calls - 1})]
print(json.dumps([*ids, task.delay({job}, {list(last)!r}).id]))
""")
    ids: list[str] = json.loads(said.splitlines()[-1])
    return ids


def outcomes(stage: Stage, ids: list[str]) -> list[Any]:
    """What the calls returned, in order, once all are there."""
    return [stage.client.AsyncResult(one).get(timeout=60) for one in ids]


@on_both_brokers
def test_of_30_calls_the_last_one_runs_once(on_stage: OnStage, broker: str) -> None:
    stage = on_stage(broker)
    stage.pair(concurrency=2)
    job = stage.job()
    ids = burst(stage, job, 30)
    found = outcomes(stage, ids)
    assert found[-1] == f"done:{job}"
    assert {value["reason"] for value in found[:-1]} == {"debounced"}
    assert {value["holder"] for value in found[:-1]} <= set(ids)
    (run,) = stage.ledger.runs(job=job)
    assert run.start.task_id == ids[-1]
    stage.assert_settled()


@on_both_brokers
@pytest.mark.parametrize("victim", ["child", "main"])
def test_killed_while_the_last_one_runs_it_runs_again_to_its_end(
    on_stage: OnStage, broker: str, victim: str
) -> None:
    """Also if the next burst has begun, whose last call runs after it."""
    stage = on_stage(broker, visibility=3.0 if victim == "main" else 3600.0)
    worker = stage.worker(concurrency=2)
    job, gate = stage.job(), stage.gate()
    script = [{"seconds": 60}, {"gate": str(gate)}]
    ids = burst(stage, job, 30, script)
    start = stage.started(job)
    assert start.task_id == ids[-1]
    later = burst(stage, job, 3)
    if victim == "child":
        stage.kill(start.pid)
    else:
        stage.watch(start.pid)
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


def test_a_worker_is_killed_while_messages_wait_for_their_time(on_stage: OnStage) -> None:
    """They wait in its memory; the broker delivers them again, and the last one runs."""
    stage = on_stage("rabbitmq")
    worker = stage.worker()
    job = stage.job()
    ids = burst(stage, job, 10, task="long_debounced")
    for one in ids:
        stage.deliveries(one, 1)
    stage.kill(worker.pid)
    stage.worker()
    found = outcomes(stage, ids)
    assert [isinstance(value, dict) for value in found] == [True] * 9 + [False]
    assert stage.ledger.completions(job=job) == 1
    stage.assert_settled()


def test_calls_that_keep_coming_run_after_debounce_max(on_stage: OnStage) -> None:
    stage = on_stage()
    stage.worker(concurrency=2)
    job, gate = stage.job(), stage.gate()
    calling = f"""
import django, json, pathlib, time; django.setup()
from tests.acceptance.queue.tasks import capped
ids = []
while not pathlib.Path({str(gate)!r}).exists():
    ids.append(capped.delay({job}, []).id)
    time.sleep(0.1)
print(json.dumps(ids))
"""
    senders = [Meanwhile(lambda: stage.script(calling, 180)) for _ in range(2)]
    stage.started(job, 3, within=90)
    gate.touch()
    ids = [one for sender in senders for one in json.loads(sender.result(60).splitlines()[-1])]
    found = outcomes(stage, ids)
    ran = [value for value in found if isinstance(value, str)]
    assert 3 <= len(ran) < len(ids) / 2
    starts = [run.start.task_id for run in stage.ledger.runs(job=job)]
    assert len(starts) == len(set(starts)) == len(ran)
    assert starts[-1] in (ids[-1], json.loads(senders[0].result().splitlines()[-1])[-1])
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def test_the_last_one_is_revoked_and_the_next_call_runs(on_stage: OnStage) -> None:
    stage = on_stage()
    stage.worker()
    job = stage.job()
    (revoked,) = burst(stage, job, 1, task="long_debounced")
    stage.deliveries(revoked, 1)
    stage.client.control.revoke(revoked, reply=True)
    until(lambda: stage.ledger.entries("revoked", task_id=revoked), "it is discarded", 60)
    assert burst(stage, job, 2)[-1] == stage.completed(job, 60).task_id
    assert stage.ledger.completions(job=job) == 1


@on_both_brokers
def test_a_run_beside_the_holder_is_killed_and_runs_again(on_stage: OnStage, broker: str) -> None:
    """``on_conflict="run"``: no lease of the lock, and yet its deaths count and its redelivery is
    known."""
    stage = on_stage(broker)
    stage.worker(concurrency=3)
    job, gate, second = stage.job(), stage.gate(), stage.gate()
    holder = stage.send("watched", job, [{"gate": str(gate)}])
    stage.started(job)
    beside = stage.send("watched", job, [{"seconds": 60}, {"gate": str(second)}])
    start = stage.started(job, 2)
    assert (start.task_id, start.fence) == (beside.id, None)
    assert stage.held() == [f"beside:{beside.id}", f"job:{job}"]
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


def test_a_run_beside_the_holder_that_always_dies_ends_as_a_failure(on_stage: OnStage) -> None:
    stage = on_stage()
    stage.worker(concurrency=3)
    job, gate = stage.job(), stage.gate()
    holder = stage.send("watched", job, [{"gate": str(gate)}])
    stage.started(job)
    poison = stage.send("watched", job, [{"then": "kill"}])
    until(lambda: poison.state == "FAILURE", "it is given up", 60)
    assert type(poison.result).__name__ == "TooManyAttempts"
    assert len(stage.ledger.entries("start", job=job, task_id=poison.id)) == 3
    gate.touch()
    assert holder.get(timeout=60) == f"done:{job}"
    stage.assert_settled()


def test_a_run_beside_the_holder_outlasts_the_visibility_timeout(on_stage: OnStage) -> None:
    """Its copies are turned away, also when the lock is free, and dropped after it."""
    stage = on_stage(visibility=1.0)
    stage.pair(concurrency=2)
    job, gate, other = stage.job(), stage.gate(), stage.gate()
    holder = stage.send("watched", job, [{"gate": str(gate)}])
    stage.started(job)
    beside = stage.send("watched", job, [{"gate": str(other)}])
    stage.started(job, 2)
    stage.deliveries(beside.id, 2)
    gate.touch()
    holder.get(timeout=60)
    stage.deliveries(beside.id, 4)
    other.touch()
    assert beside.get(timeout=60) == f"done:{job}"
    stage.assert_settled(60)
    ended = [entry.task_id for entry in stage.ledger.entries("end", job=job)]
    assert sorted(ended) == sorted([holder.id, beside.id])
    assert len(stage.ledger.runs(job=job)) == 2
