"""django-celery-beat: two beats with its `DatabaseScheduler` send each task twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.surroundings.at_work import TTL_SECONDS, install, need, rows, skipped
from tests.stage.fixtures import MakeStage
from tests.stage.workers import beat
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_a_task_that_two_beats_send_runs_once(make_stage: MakeStage, tmp_path: Path) -> None:
    # Given two beats that have the same two tasks in the database, to be sent every second
    need("django_celery_beat")
    stage = make_stage(ttl=TTL_SECONDS)
    stage.conf |= {"imports": ["tests.stage.tasks"], "beat_sync_every": 1}
    install(stage, "django_celery_beat")
    job, gate, hourly = stage.job(), stage.gate(), stage.job()
    entries = {"guarded": [job, [{"gate": str(gate)}]], "cooled": [hourly]}
    stage.script(f"""

import json
import django; django.setup()
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
for task, args in {entries!r}.items():
    PeriodicTask.objects.create(name=task, task=task, args=json.dumps(args), interval=every)
""")
    stage.worker(concurrency=3)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    scheduler = ("-S", "django_celery_beat.schedulers:DatabaseScheduler", "--max-interval=1")
    with (
        beat(stage.settings(), folders[0], *scheduler) as first,
        beat(stage.settings(), folders[1], *scheduler) as second,
    ):
        logs = [first, second]

        def sent(task: str) -> int:
            """By the beat that has sent it least often."""
            text = f"Sending due task {task}"
            return min(log.read_text(errors="replace").count(text) for log in logs)

        # I expect a task to be at work once, also after its process was killed
        start = stage.started(job)
        until(lambda: sent("guarded") >= 2 and sent("cooled") >= 2, "each has sent both twice")
        stage.kill(start.pid)
        # Its own message, or that of a beat, whichever comes first.
        again = stage.started(job, 2)
        assert again.fence > start.fence
        before = sent("guarded")
        until(lambda: sent("guarded") >= before + 2, "each has sent it twice more")
        gate.touch()
        stage.completed(job)
        # Before they are told to end: that raises, at times in a finalizer of Celery's.
        for log in logs:
            assert "Traceback" not in log.read_text(errors="replace")
    until(stage.quiet, "the queue is empty", every=0.1)

    # And to have been done once, the other one too, within its ``lock_hold_at_least``
    stage.assert_done_once(job)
    assert len(stage.ledger.entries("start", job=job)) == 2
    assert stage.ledger.completions(job=hourly) == 1
    assert stage.held() == [f"job:{hourly}"]

    # And each call that was sent meanwhile to say for whom it was skipped
    others = {entry.task_id for entry in stage.ledger.entries("received", task="guarded")}
    markers = [stage.client.AsyncResult(one).get(timeout=60) for one in others - {again.task_id}]
    assert skipped(start.task_id, job) in markers
    assert {marker["status"] for marker in markers} == {"skipped"}
    counts = rows(
        stage,
        "SELECT total_run_count FROM django_celery_beat_periodictask WHERE name IN (?, ?)",
        *entries,
    )
    assert [row["total_run_count"] > 0 for row in counts] == [True, True]
