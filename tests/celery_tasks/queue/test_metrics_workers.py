"""The counters of real prefork workers, together in one place: prometheus_client's multiprocess
mode, and the command that reads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import needs
from tests.celery_tasks.queue.beside import environment
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
JOBS = 8
MANAGE = """
import sys
import tests.celery_tasks.queue.tasks
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "locks", "metrics", *sys.argv[1:]])
"""


def metrics(stage: Stage, more: dict[str, str], *arguments: str) -> dict[str, float]:
    """What the command prints, by name and labels."""
    done = subprocess.run(
        [sys.executable, "-c", MANAGE, *arguments],
        cwd=ROOT,
        env=environment(stage) | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def total(found: dict[str, float], name: str, **labels: str) -> float:
    """The sum over all series with these labels."""
    pairs = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value
        for series, value in found.items()
        if series.startswith(f"{name}{{") and all(pair in series for pair in pairs)
    )


def test_the_children_of_a_worker_count_together_those_that_were_killed_too(
    on_stage: OnStage, tmp_path: Path
) -> None:
    needs.package("prometheus_client")
    folder = tmp_path / "counters"
    folder.mkdir()
    prometheus = {
        "HARD_CASES_APPS": "django_tasklock.contrib.prometheus",
        "PROMETHEUS_MULTIPROC_DIR": str(folder),
    }
    stage = on_stage()
    worker = stage.worker(concurrency=2, environment=prometheus)
    jobs = [stage.job() for _ in range(JOBS)]
    for result in [stage.send("queued", job, [{"seconds": 0.1}]) for job in jobs]:
        result.get(timeout=60)
    assert len(worker.children) == 2
    writers = {path.name.rpartition("_")[2] for path in folder.glob("*.db")}
    assert {f"{pid}.db" for pid in worker.children} & writers

    def held() -> float:
        found = metrics(stage, prometheus, "--counters")
        return total(found, "tasklock_hold_seconds_count", lock="job:{job}", outcome="released")

    # The last release may still be on its way when its result has arrived.
    until(lambda: held() == JOBS, "all releases", every=0.2)
    # What a child has counted stays when it is killed, and its work goes on in another one.
    job = stage.job()
    result = stage.send("queued", job, [{"seconds": 60}, {"seconds": 0.1}])
    stage.kill(stage.started(job).pid)
    result.get(timeout=60)
    until(lambda: held() == JOBS + 1, "the release of the second run", every=0.2)
    found = metrics(stage, prometheus, "--counters")
    acquired = total(found, "tasklock_acquires_total", lock="job:{job}", outcome="acquired")
    assert acquired == JOBS + 2
    assert total(found, "tasklock_locks_cleared_total", store="default") == 1
    assert not any(f'"job:{each}"' in series for series in found for each in jobs)
    # The state is asked for once, by the command, and no worker keeps a gauge of it.
    assert not any(series.startswith("tasklock_locks{") for series in found)
    assert metrics(stage, prometheus)['tasklock_locks{store="default",state="held"}'] == 0
