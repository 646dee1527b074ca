"""Uniqueness in the queue, with many senders and real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.celery_tasks.queue.beside import environment
from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT

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
