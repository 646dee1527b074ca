"""``debounce`` and ``on_conflict="run"`` with real workers, that are killed as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.nights import by_day

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]


def burst(stage: Stage, job: int, calls: int, last: Any = (), task: str = "debounced") -> list[str]:
    """Call the task so many times; the last call with the script ``last``. Returns all ids."""
    said = stage.script(f"""
import django, json; django.setup()
from tests.celery_tasks.queue import tasks
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
@pytest.mark.parametrize("victim", by_day("child", "main"))
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
