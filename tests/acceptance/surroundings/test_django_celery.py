"""django-celery-results keeps the results; two beats of django-celery-beat send the same task."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.hard_cases.workers import ROOT
from tests.acceptance.surroundings.recovery import LONG_SECONDS, need
from tests.waiting import until

pytestmark = pytest.mark.slow

MIGRATE = """
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
"""
EVERY_SECOND = """
import django, json
django.setup()
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
PeriodicTask.objects.create(
    name="report", task="guarded", interval=every, queue="{queue}",
    args=json.dumps([{job}, {script}]),
)
"""


def test_results_in_the_database_are_those_of_the_runs(stage: Stage) -> None:
    need("django_celery_results")
    stage.environment["HARD_CASES_APPS"] = (
        "django.contrib.contenttypes django.contrib.auth django_celery_results"
    )
    stage.script(MIGRATE)
    stage.worker(concurrency=2, conf={"result_backend": "django-db"})
    job, gate = stage.job(), stage.gate()
    result = stage.send("guarded", job, [{"seconds": LONG_SECONDS}, {"gate": str(gate)}])
    first = stage.started(job)
    double = stage.send("guarded", job)
    skipped = until(lambda: stored(stage, double.id), "the result of the double")
    assert (skipped["status"], skipped["result"]["holder"]) == ("SUCCESS", result.id)
    stage.kill(first.pid)
    stage.started(job, 2)
    assert stored(stage, result.id).get("status") not in ("SUCCESS", "FAILURE")
    gate.touch()
    done = until(lambda: stored(stage, result.id, "SUCCESS"), "the result of the job")
    assert done["result"] == f"done:{job}"
    failed = stage.job()
    broken = stage.send("guarded", failed, [{"then": "raise"}])
    until(lambda: stored(stage, broken.id, "FAILURE"), "the result of one that raised")
    stage.assert_done_once(job)
    stage.assert_settled()


def stored(stage: Stage, task_id: str, status: str | None = None) -> dict[str, Any]:
    """The row of a task's result; empty if there is none, or none with this status."""
    with closing(sqlite3.connect(stage.database, timeout=20)) as connection:
        found = connection.execute(
            "SELECT status, result FROM django_celery_results_taskresult WHERE task_id = ?",
            [task_id],
        ).fetchone()
    if found is None or status not in (None, found[0]):
        return {}
    return {"status": found[0], "result": json.loads(found[1] or "null")}


def test_what_two_beats_send_runs_once(stage: Stage) -> None:
    need("django_celery_beat")
    stage.environment["HARD_CASES_APPS"] = (
        "django.contrib.contenttypes django.contrib.auth django_celery_beat"
    )
    stage.script(MIGRATE)
    job, gate = stage.job(), stage.gate()
    script = json.dumps([{"gate": str(gate)}])
    stage.script(EVERY_SECOND.format(queue=stage.queue, job=job, script=script))
    stage.worker(concurrency=2)
    environment = {**os.environ, **stage.environment, "HARD_CASES_CELERY": json.dumps(stage.conf)}
    beats = [beat(stage, number, environment) for number in range(2)]
    try:
        first = stage.started(job)
        until(lambda: all(sent_by(stage, number) > 1 for number in range(2)), "that both have sent")
        stage.kill(first.pid)
        # It, or a later message, whichever comes first.
        stage.started(job, 2)
        before = len(stage.ledger.entries("received"))
        until(lambda: len(stage.ledger.entries("received")) > before + 3, "more messages")
    finally:
        for each in beats:
            each.terminate()
            each.wait(60)
    gate.touch()
    stage.completed(job)
    stage.assert_settled()
    assert len(stage.ledger.entries("start", job=job)) == 2
    stage.assert_done_once(job)


def beat(stage: Stage, number: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A beat whose schedule is in the database."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.acceptance.hard_cases.app", "beat"),
        *("-S", "django", "-l", "INFO", "--max-interval", "1", "--pidfile", ""),
    ]
    with (stage.folder / f"beat{number}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def sent_by(stage: Stage, number: int) -> int:
    return (stage.folder / f"beat{number}.log").read_text().count("Sending due task report")
