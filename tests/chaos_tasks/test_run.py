"""A short run, and what a run leaves behind when it is broken off."""

from __future__ import annotations

import re
import secrets
import signal
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.chaos.short_runs import assert_breaks_off, finished

TASKS = 150

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    if request.param == "rabbitmq":
        needs.own_rabbitmq()
    return str(request.param)


def test_nothing_is_violated_in_a_short_run(tmp_path: Path, broker: str) -> None:
    """``make chaos-tasks`` sends more."""
    seed = secrets.token_hex(4)
    print(f"SEED={seed}")
    said = finished(_command(seed, TASKS, tmp_path, broker))
    rows = re.search(r"rows: (\d+) done", said)
    assert rows is not None, said
    assert int(rows[1]) > TASKS / 2, f"too little happened: {said}"


def test_a_run_that_is_broken_off_ends_its_processes(tmp_path: Path, broker: str) -> None:
    # Two servers or more, a worker and its pool.
    assert_breaks_off(
        _command("1", 5000, tmp_path, broker, workers=1), signal.SIGTERM,
        lambda: len(list(tmp_path.glob("[0-9]*.jsonl"))) >= 3, 4, begins_within=120, ends_within=60,
    )  # fmt: skip


def _command(seed: str, tasks: int, folder: Path, broker: str, *, workers: int = 2) -> list[str]:
    options = ["--tasks", str(tasks), "--seed", seed, "--folder", str(folder), "--broker", broker]
    options += ["--workers", str(workers), "--pause", "0.1", "0.7"]
    return [sys.executable, "-m", "tests.chaos_tasks", *options]
