"""``manage.py locks doctor`` beside real workers finds what was stranded on purpose, exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.celery_tasks.queue.beside import environment
from tests.hard_cases.brokers import RedisBroker
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
MANAGE = """
import sys
import tests.celery_tasks.queue.tasks
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "locks", "doctor", *sys.argv[1:]])
"""


def doctor(stage: Stage, *arguments: str) -> Any:
    """A doctor that begins to look."""
    return subprocess.Popen(
        [sys.executable, "-c", MANAGE, "--format", "json", *arguments],
        cwd=ROOT,
        env=environment(stage),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: Any) -> tuple[list[dict[str, Any]], int]:
    """What it found, and its exit status."""
    out, err = process.communicate(timeout=120)
    try:
        return json.loads(out), process.returncode
    except json.JSONDecodeError:
        raise AssertionError(out + err) from None


def lost(found: list[dict[str, Any]]) -> list[int]:
    """The rows among what was found."""
    return sorted(int(problem["pk"]) for problem in found if problem["kind"] == "lost work")


def test_what_was_lost_is_found_and_sent_again_once(on_stage: OnStage) -> None:
    stage = on_stage(ttl=300)
    broker = stage.broker
    assert isinstance(broker, RedisBroker)
    # Given a child that is killed with acks_late off, a message that is lost with its worker,
    first = stage.worker(concurrency=2)
    early, late = stage.job(), stage.job()
    script: list[dict[str, Any]] = [{"seconds": 60}, {"seconds": 0.1}]
    stage.send("early_work", early, script)
    stage.send("late_work", late, script)
    for job in (early, late):
        stage.watch(stage.started(job).pid)
    stage.kill(stage.started(early).pid)
    until(lambda: stage.held() == [f"job:{late}"], "its lock is cleared", 10)
    stage.kill(first.pid)
    broker.client.flushdb()
    # a row that somebody set by hand, and a job at work
    by_hand, long, gate = stage.job("working"), stage.job(), stage.gate()
    stranded = sorted([early, late, by_hand])
    stage.worker(concurrency=4)
    stage.send("late_work", long, [{"gate": str(gate)}])
    stage.started(long)
    # The main process was killed and could clear nothing: its lease still has minutes.
    found, status = said(doctor(stage))
    orphaned = [problem["what"] for problem in found if problem["kind"] == "owner gone"]
    assert orphaned == [f"job:{late}"]
    assert (lost(found), status) == (sorted([early, by_hand]), 1)
    stage.redis.delete(stage.lock_key(orphaned[0]))
    # Two at the same time: each row is sent by one of them, and nothing is left to do.
    both = [said(each) for each in [doctor(stage, "--requeue") for _ in range(2)]]
    problems = [problem for found, _ in both for problem in found]
    assert {problem["requeued"] for problem in problems} <= {"sent again", "sent a moment ago"}
    assert lost([each for each in problems if each["requeued"] == "sent again"]) == stranded
    assert [status for _, status in both] == [0, 0]
    for job in stranded:
        until(lambda job=job: stage.row(job)[0] == "done", "it is done", 60)  # type: ignore[misc]
    gate.touch()
    stage.assert_settled(60)
    assert said(doctor(stage)) == ([], 0)
    for job in stranded:
        assert stage.ledger.completions(job=job) == 1
        assert len(stage.ledger.runs(job=job)) == (1 if job == by_hand else 2)
    stage.assert_done_once(long)
