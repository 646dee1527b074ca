"""A real ``celery beat`` and real workers: unique messages, and those that are sent by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.hard_cases.conftest import on_both_brokers
from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.queue.test_unique_workers import beat
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


def test_a_duplicate_that_raises_does_not_stop_beat(on_stage: OnStage, tmp_path: Path) -> None:
    stage = on_stage()
    job, gate = stage.job(), stage.gate()
    stage.conf["beat_schedule"] = {"often": entry("unfinished", job, gate, on_duplicate="raise")}
    stage.worker()
    with beat(stage, tmp_path) as log:
        stage.started(job)
        until_due(log, 5)
        assert "AlreadyQueued" in log.read_text(errors="replace")
        assert stage.queued() == 1
        gate.touch()
        stage.started(job, 2)
    stage.assert_settled()


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


def test_a_beat_that_does_not_know_the_task_sends_each_and_ends_no_reservation(
    on_stage: OnStage, tmp_path: Path
) -> None:
    stage = on_stage()
    job, gate = stage.job(), stage.gate()
    waits = stage.script(f"""
import django; django.setup()
from tests.acceptance.queue.tasks import queued
print(queued.apply_async([{job}], countdown=3600).id)
""").strip()
    stage.worker(concurrency=2)
    stage.deliveries(waits, 1)
    stage.conf["beat_schedule"] = {"often": entry("skip_unique", job, gate)}
    imports = stage.conf.pop("imports")
    with beat(stage, tmp_path) as log:
        stage.started(job)
        until_due(log, 5)
        text = log.read_text(errors="replace")
    stage.conf["imports"] = imports
    assert "not sent" not in text
    assert "Traceback" not in text
    found = {"task": "skip_unique"}
    until(lambda: len(stage.ledger.entries("received", **found)) >= 4, "others arrive", 60)
    gate.touch()
    until(lambda: stage.queued() == 1, "only the one that waits is left", 60, every=0.1)
    assert stage.ledger.overlaps(job=job) == []
    again = stage.script(f"""
import django; django.setup()
from tests.acceptance.queue.tasks import queued
print(queued.delay({job}).id)
""").strip()
    assert again == waits
    stage.client.control.revoke(waits, reply=True)


@on_both_brokers
@pytest.mark.parametrize("knows", [True, False])
def test_send_task_sends_each_and_the_lock_decides(
    on_stage: OnStage, broker: str, knows: bool
) -> None:
    stage = on_stage(broker)
    stage.worker(concurrency=3)
    job, gate = stage.job(), stage.gate()
    script = [{"gate": str(gate)}]
    source = "tests.acceptance.queue.tasks" if knows else "tests.acceptance.hard_cases.app"
    ids = stage.script(f"""
import django; django.setup()
from {source} import app
assert ("skip_unique" in app.tasks) is {knows}
print(*[app.send_task("skip_unique", [{job}, {script!r}]).id for _ in range(3)])
""").split()
    assert len(set(ids)) == 3
    running = stage.started(job).task_id
    others = [stage.client.AsyncResult(one) for one in ids if one != running]
    for other in others:
        assert other.get(timeout=60)["holder"] == running
    gate.touch()
    assert stage.client.AsyncResult(running).get(timeout=60) == f"done:{job}"
    stage.assert_settled()
