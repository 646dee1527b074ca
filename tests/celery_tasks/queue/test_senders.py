"""Many senders, and a ``celery beat``, with real workers: what they send is unique in the queue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.celery_tasks.queue.beside import beat, environment
from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
BOTH = ("queued", "unfinished")
CALLS = 100
PROCESSES = 4


def sending(stage: Stage, args: list[Any], *tasks: str, calls: int = CALLS) -> Any:
    """Processes that begin to send; ``sent`` says what they were given."""
    command = [sys.executable, "-m", "tests.celery_tasks.queue.burst", str(PROCESSES), str(calls)]
    return subprocess.Popen(
        [*command, json.dumps(args), *tasks],
        cwd=ROOT,
        env=environment(stage),
        stdout=subprocess.PIPE,
        text=True,
    )


def sent(senders: Any) -> dict[str, list[str]]:
    """The different ids that the senders were given, for each task."""
    said, _ = senders.communicate(timeout=120)
    assert senders.returncode == 0
    ids: dict[str, list[str]] = json.loads(said)
    return ids


def burst(stage: Stage, args: list[Any], *tasks: str, calls: int = CALLS) -> dict[str, list[str]]:
    """Many calls of each task from some processes: the different ids that came back."""
    return sent(sending(stage, args, *tasks, calls=calls))


@on_both_brokers
def test_100_calls_from_4_processes_send_one_message(on_stage: OnStage, broker: str) -> None:
    """ "queued": and one more while that one runs; "unfinished": no other until it has ended."""
    stage = on_stage(broker)
    job, gate = stage.job(), stage.gate()
    args = [job, [{"gate": str(gate)}]]
    before = burst(stage, args, *BOTH)
    assert {task: len(ids) for task, ids in before.items()} == dict.fromkeys(BOTH, 1)
    assert stage.queued() == 2
    # Both tasks have the lock of one name; each runs when the other has ended.
    stage.worker()
    running = stage.started(job)
    (waiting,) = {ids[0] for ids in before.values()} - {running.task_id}
    during = burst(stage, args, *BOTH)
    if running.task == "queued":
        (second,) = during["queued"]
        assert second != running.task_id
    else:
        (second,) = during["queued"]
        assert second == waiting
    assert during["unfinished"] == before["unfinished"]
    assert stage.queued() == len({running.task_id, waiting, second})
    gate.touch()
    stage.assert_settled()
    starts = [entry.task_id for entry in stage.ledger.entries("start", job=job)]
    assert sorted(starts) == sorted({running.task_id, waiting, second})
    assert stage.ledger.overlaps(job=job) == []


@on_both_brokers
def test_51_while_a_job_fails_and_retries_one_waits_at_every_moment(
    on_stage: OnStage, broker: str
) -> None:
    """Five calls a second. One more may just have been taken over, and not yet been skipped."""
    stage = on_stage(broker)
    stage.worker(concurrency=2)
    said = stage.script("""
import json, time
from celery import states
from tests.celery_tasks.queue import tasks
sent, open_at, end = {}, [], time.monotonic() + 8
while time.monotonic() < end:
    result = tasks.flaky.delay(1, [{"seconds": 0.3, "then": "raise"}])
    sent[result.id] = result
    open_at.append(sum(each.state not in states.READY_STATES for each in sent.values()))
    time.sleep(0.2)
print(json.dumps(open_at))
""")
    open_at = json.loads(said.splitlines()[-1])
    assert max(open_at) <= 3, open_at
    assert len(stage.ledger.entries("start", job=1)) >= 3


# ------------------------------------------------------------------------------ 54. gone messages


@on_both_brokers
def test_54_a_message_that_a_worker_does_not_know_lets_the_next_call_in(
    on_stage: OnStage, broker: str
) -> None:
    """As during a deployment: the worker has an older version of the code."""
    stage = on_stage(broker)
    (first,) = called(stage, "tasks.queued.delay(1)")
    assert called(stage, "tasks.queued.delay(1)") == [first]
    stage.worker(conf={"imports": []})
    result = stage.client.AsyncResult(first)
    until(lambda: result.state == "FAILURE", "the message is thrown away", 60)
    assert called(stage, "tasks.queued.delay(1)") != [first]


@on_both_brokers
def test_54_the_doctor_finds_the_reservation_of_a_message_that_is_nowhere(
    on_stage: OnStage, broker: str
) -> None:
    """A worker refuses its content type, and stores no result. It says nothing of a message that is
    in the queue, or with a worker, and nothing where no worker answers."""
    stage = on_stage(broker)
    gone, later = called(
        stage,
        "tasks.queued.apply_async([1], serializer='pickle')",
        "tasks.queued.apply_async([2], countdown=600)",
    )
    assert reservations(stage) == []
    worker = stage.worker()
    stage.deliveries(later, 1)
    until(lambda: "Refusing to deserialize" in worker.text(), "the message is thrown away", 60)
    ((what, serious, message),) = reservations(stage)
    assert (what, serious) == ("job:1", False)
    assert f"queued[{gone}]" in message
    assert called(stage, "tasks.queued.delay(1)") == [gone]

    # When the reservation is ended, I expect the next call to be sent
    stage.script("""
from django.core.management import call_command
call_command("locks", "clear", "--queued", "job:1", interactive=False)
""")
    assert called(stage, "tasks.queued.delay(1)") != [gone]
    assert reservations(stage) == []


@pytest.mark.parametrize("said_by", ["the call", "task_routes"])
def test_the_doctor_looks_into_the_queues_of_the_task_and_of_the_workers(
    on_stage: OnStage, said_by: str
) -> None:
    """The process of the doctor does not know the queue by itself."""
    stage = on_stage("redis")
    queue, job, gate = f"{stage.queue}-videos", stage.job(), stage.gate()
    if said_by == "task_routes":
        stage.conf["task_routes"] = {"queued": {"queue": queue}}
    option = f", queue={queue!r}" if said_by == "the call" else ""
    worker = stage.worker(options=("-Q", queue), conf={"worker_prefetch_multiplier": 1})
    script = [{"gate": str(gate)}]
    first, waits = called(
        stage,
        f"tasks.queued.apply_async([{job}, {script}]{option})",
        f"tasks.queued.apply_async([{stage.job()}]{option})",
    )
    stage.started(job)
    assert reservations(stage) == []
    gate.touch()
    until(lambda: f"[{waits}] succeeded" in worker.text(), "what has waited has run", 60)
    assert first != waits


def called(stage: Stage, *calls: str) -> list[str]:
    """The task ids that these calls return."""
    said = stage.script(f"""
import json
from tests.celery_tasks.queue import tasks
print(json.dumps([each.id for each in [{", ".join(calls)}]]))
""")
    ids: list[str] = json.loads(said.splitlines()[-1])
    return ids


def reservations(stage: Stage) -> list[list[Any]]:
    """What the doctor says of reservations."""
    said = stage.script("""
import json
from django_tasklock.operators.doctor import diagnose
from tests.celery_tasks.queue import tasks
found = [each for each in diagnose() if each.kind == "reservation"]
print(json.dumps([[each.what, each.serious, each.message] for each in found]))
""")
    found: list[list[Any]] = json.loads(said.splitlines()[-1])
    return found


@on_both_brokers
def test_calls_after_a_child_is_killed_send_one_message_more_at_most(
    on_stage: OnStage, broker: str
) -> None:
    """Its message is delivered again. Before that one call may be sent, and the lock keeps the two
    apart."""
    stage = on_stage(broker)
    stage.worker()
    job, gate = stage.job(), stage.gate()
    script = [{"seconds": 60}, {"gate": str(gate)}]
    (first,) = burst(stage, [job, script], "unfinished", calls=8)["unfinished"]
    start = stage.started(job)
    senders = sending(stage, [job, script], "unfinished")
    stage.kill(start.pid)
    known = {first, *sent(senders)["unfinished"]}
    stage.started(job, 2)
    known |= {*burst(stage, [job, script], "unfinished", calls=8)["unfinished"]}
    assert len(known) <= 2
    assert stage.queued() <= 2
    gate.touch()
    stage.assert_settled()
    assert stage.ledger.overlaps(job=job) == []
    assert known.isdisjoint(burst(stage, [job], "unfinished", calls=8)["unfinished"])
    stage.assert_settled()


# ------------------------------------------------------------------------------ beat


def entry(task: str, job: int, gate: Path, **options: Any) -> dict[str, Any]:
    """Due ten times a second."""
    args = [job, [{"gate": str(gate)}]]
    return {"task": task, "schedule": 0.1, "args": args, "options": options}


def until_due(log: Path, times: int) -> None:
    """Wait until beat has sent what is due so many times more."""

    def sendings() -> int:
        return log.read_text(errors="replace").count("Sending due task often")

    before = sendings()
    until(lambda: sendings() >= before + times, f"{times} more are due", 60)


@on_both_brokers
def test_unfinished_beat_sends_nothing_while_one_runs_and_says_so(
    on_stage: OnStage, tmp_path: Path, broker: str
) -> None:
    stage = on_stage(broker)
    job, gate = stage.job(), stage.gate()
    one = entry("unfinished", job, gate, unique_for=600, expires=3600)
    stage.conf["beat_schedule"] = {"often": one}
    stage.worker()
    with beat(stage, tmp_path) as log:
        first = stage.started(job).task_id
        until_due(log, 10)
        assert stage.queued() == 1
        text = log.read_text(errors="replace")
        assert f"a call of unfinished was not sent: {first} runs already, lock job:{job}" in text
        assert "Traceback" not in text
    gate.touch()
    stage.assert_settled()
    assert stage.ledger.overlaps(job=job) == []


def test_an_outage_stops_no_beat(on_stage: OnStage, tmp_path: Path) -> None:
    """What is due meanwhile is not sent; what is due afterwards is."""
    stage = on_stage()
    job, gate = stage.job(), stage.gate()
    gate.touch()
    stage.conf["beat_schedule"] = {"often": entry("unfinished", job, gate)}
    nowhere = {"HARD_CASES_LOCKS": "redis://127.0.0.1:1/0"}
    before, stage.environment = stage.environment, {**stage.environment, **nowhere}
    with beat(stage, tmp_path) as log:
        until_due(log, 5)
        said = log.read_text(errors="replace")
    assert "Message Error: Couldn't apply scheduled task often" in said
    assert "StoreUnavailable" in said
    assert stage.queued() == 0
    stage.environment = before
    stage.worker()
    with beat(stage, tmp_path):
        stage.completed(job)
    stage.assert_settled()
