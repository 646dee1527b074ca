"""Uniqueness in the queue, with many senders, real workers, both brokers and beat."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery
import pytest

from tests.acceptance.hard_cases.conftest import on_both_brokers
from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.hard_cases.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
BOTH = ("queued", "unfinished")
CALLS = 500
PROCESSES = 8


def environment(stage: Stage) -> dict[str, str]:
    """That of a process beside the stage's workers."""
    conf = json.dumps(stage.conf)
    return {**os.environ, **stage.environment, "HARD_CASES_CELERY": conf}


def sending(stage: Stage, args: list[Any], *tasks: str, calls: int = CALLS) -> Any:
    """Eight processes that begin to send; ``sent`` says what they were given."""
    command = [sys.executable, "-m", "tests.acceptance.queue.burst", str(PROCESSES), str(calls)]
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
    """500 calls of each task from eight processes: the different ids that came back."""
    return sent(sending(stage, args, *tasks, calls=calls))


@on_both_brokers
def test_500_calls_from_8_processes_send_one_message(on_stage: OnStage, broker: str) -> None:
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
def test_calls_after_a_child_is_killed_send_no_second_message(
    on_stage: OnStage, broker: str
) -> None:
    """Its message is delivered again, and all calls meanwhile return its id."""
    stage = on_stage(broker)
    stage.worker()
    job, gate = stage.job(), stage.gate()
    script = [{"seconds": 60}, {"gate": str(gate)}]
    (first,) = burst(stage, [job, script], "unfinished", calls=8)["unfinished"]
    start = stage.started(job)
    senders = sending(stage, [job, script], "unfinished")
    stage.kill(start.pid)
    assert sent(senders) == {"unfinished": [first]}
    stage.started(job, 2)
    assert burst(stage, [job, script], "unfinished", calls=8) == {"unfinished": [first]}
    assert stage.queued() == 1
    gate.touch()
    stage.assert_settled()
    assert stage.ledger.completions(job=job) == 1
    assert burst(stage, [job], "unfinished", calls=8)["unfinished"] != [first]
    stage.assert_settled()


def test_calls_after_a_main_process_is_killed_send_no_second_messages(on_stage: OnStage) -> None:
    """One that runs, and one that waits for its time in the worker's memory."""
    # A run that was killed is recognised by its lease, which must last while the calls are made.
    stage = on_stage("rabbitmq", ttl=300.0)
    worker = stage.worker()
    later, job, gate = stage.job(), stage.job(), stage.gate()
    args = [job, [{"gate": str(gate)}]]
    made = stage.script(f"""
import django; django.setup()
from tests.acceptance.queue.tasks import queued, unfinished
print(queued.apply_async([{later}], countdown=3600).id, unfinished.delay(*{args}).id)
""")
    waiting, running = made.split()
    stage.deliveries(waiting, 1)
    stage.watch(stage.started(job).pid)
    stage.kill(worker.pid)
    assert burst(stage, args, "unfinished", calls=80) == {"unfinished": [running]}
    stage.worker()
    stage.started(job, 2)
    assert burst(stage, args, "unfinished", calls=80) == {"unfinished": [running]}
    stage.deliveries(waiting, 2)
    assert burst(stage, [later], "queued", calls=80) == {"queued": [waiting]}
    gate.touch()
    until(lambda: stage.queued() == 1, "the one that ran is acknowledged", 60)
    assert [entry.task_id for entry in stage.ledger.entries("end", job=job)] == [running]


def test_a_revoked_message_is_no_longer_waited_for(on_stage: OnStage) -> None:
    """At once where the worker says so in the result backend, else when its message arrives."""
    stage = on_stage()
    stage.worker()
    busy, gate = stage.job(), stage.gate()
    blocking = stage.send("plain", busy, [{"gate": str(gate)}])
    stage.started(busy)
    job = stage.job()
    (first,) = burst(stage, [job], "unfinished", calls=8)["unfinished"]
    stage.client.control.revoke(first, reply=True)
    gate.touch()
    blocking.get(timeout=60)
    until(lambda: stage.ledger.entries("revoked", task_id=first), "it is discarded", 60)
    assert first not in burst(stage, [job], "unfinished", calls=8)["unfinished"]
    stage.completed(job)
    if celery.VERSION >= (5, 6, 2):
        # It waits for its time in the worker's memory, and would for an hour.
        later = stage.job()
        made = stage.script(f"""
import django; django.setup()
from tests.acceptance.queue.tasks import queued
print(queued.apply_async([{later}], countdown=3600).id)
""").strip()
        stage.deliveries(made, 1)
        assert burst(stage, [later], "queued", calls=8) == {"queued": [made]}
        stage.client.control.revoke(made, reply=True)
        assert made not in burst(stage, [later], "queued", calls=8)["queued"]
        stage.completed(later)
    else:
        stage.assert_settled()


def test_groups_chords_chains_and_retries_complete_beside_a_message_that_waits(
    on_stage: OnStage,
) -> None:
    """None of them gets the result of the waiting message, which comes much later."""
    stage = on_stage()
    stage.worker(concurrency=2)
    job, retried = stage.job(), stage.job()
    said = stage.script(f"""
import celery, django, json; django.setup()
from tests.acceptance.queue.tasks import app, queued, unfinished
job, collect = {job}, app.signature("collect")
waits = [task.apply_async([job], countdown=3600).id for task in (queued, unfinished)]
done = {{}}
for task in (queued, unfinished):
    done[task.name] = [
        celery.group(task.s(job), task.s(job))().get(timeout=60),
        celery.chord([task.s(job), task.s(job)])(collect.clone(["a chord"])).get(timeout=60),
        (task.s(job) | collect.clone(["a chain"]) | task.si(job)).apply_async().get(timeout=60),
        task.apply_async([job], link=collect.clone(["a link"])).get(timeout=60),
    ]
assert [task.delay(job).id for task in (queued, unfinished)] == waits
retries = [{{"then": "retry"}}, {{"then": "retry"}}, {{}}]
done["retried"] = [task.delay({retried}, retries).get(timeout=60) for task in (queued, unfinished)]
print(json.dumps(done))
""")
    one = f"done:{job}"
    expected = [[one, one], [one, one], one, one]
    assert json.loads(said.splitlines()[-1]) == {
        "queued": expected,
        "unfinished": expected,
        "retried": [f"done:{retried}"] * 2,
    }
    until(lambda: len(stage.ledger.entries("collected")) == 6, "every callback", 60)
    assert len(stage.ledger.runs(job=retried)) == 6


@contextlib.contextmanager
def beat(stage: Stage, folder: Path, *options: str) -> Iterator[Path]:
    """A ``celery beat`` beside the workers; yields its log."""
    log = folder / "beat.log"
    schedule = f"--schedule={folder / 'schedule'}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.acceptance.hard_cases.app", "beat"),
                *("-l", "INFO", "--pidfile=", schedule, *options),
            ],
            cwd=ROOT,
            env=environment(stage),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        end_beat(process)


def end_beat(process: subprocess.Popen[bytes]) -> None:
    """Beat ends by an exception from its signal handler. Python drops that in a finalizer, and
    Celery's `AsyncResult.__del__` is one that asks the backend: so it may have to be told again."""
    for _ in range(10):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
    process.kill()
    process.wait()
    raise AssertionError("beat did not end after ten SIGTERM")


def test_beat_sends_one_message_beside_the_one_that_runs(on_stage: OnStage, tmp_path: Path) -> None:
    stage = on_stage()
    job, gate = stage.job(), stage.gate()
    args = [job, [{"gate": str(gate)}]]
    stage.conf["beat_schedule"] = {"often": {"task": "queued", "schedule": 0.1, "args": args}}
    stage.worker()
    with beat(stage, tmp_path) as log:
        stage.started(job)

        def sendings() -> int:
            return log.read_text(errors="replace").count("Sending due task often")

        before = sendings()
        until(lambda: sendings() >= before + 10, "ten more are due", 30)
        assert stage.queued() == 2
        assert len(stage.ledger.entries("start", job=job)) == 1
    gate.touch()
    stage.assert_settled()
    assert stage.ledger.completions(job=job) == 2
    assert stage.ledger.overlaps(job=job) == []
