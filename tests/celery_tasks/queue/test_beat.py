"""A real ``celery beat`` and real workers: what it sends is unique too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.celery_tasks.queue.beside import beat
from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]


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
