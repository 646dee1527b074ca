"""A short run, and what a run leaves behind when it is broken off."""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
TASKS = 150

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_nothing_is_violated_in_a_short_run(tmp_path: Path) -> None:
    """``make chaos-tasks`` sends more."""
    seed = secrets.token_hex(4)
    print(f"SEED={seed}")
    done = subprocess.run(
        _command(seed, TASKS, tmp_path), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    rows = re.search(r"rows: (\d+) done", done.stdout)
    assert rows is not None, done.stdout
    assert int(rows[1]) > TASKS / 2, f"too little happened: {done.stdout}"


def test_a_run_that_is_broken_off_ends_its_processes(tmp_path: Path) -> None:
    run = psutil.Popen(
        _command("1", 5000, tmp_path, workers=1), cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: len(list(tmp_path.glob("[0-9]*.jsonl"))) >= 3, "that it works", 120)
        children = run.children(recursive=True)
        assert len(children) >= 4, "two servers, a worker and its pool"
        run.send_signal(signal.SIGTERM)
        run.wait(60)
        until(lambda: not any(_lives(child) for child in children), "that all are ended")
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _command(seed: str, tasks: int, folder: Path, *, workers: int = 2) -> list[str]:
    options = ["--tasks", str(tasks), "--seed", seed, "--folder", str(folder)]
    options += ["--workers", str(workers), "--pause", "0.1", "0.7"]
    return [sys.executable, "-m", "tests.chaos_tasks", *options]
