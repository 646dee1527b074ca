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
SECONDS = 10.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_nothing_is_violated_in_a_short_run(tmp_path: Path) -> None:
    """``make chaos`` plays for longer."""
    seed = secrets.token_hex(4)
    print(f"SEED={seed}")
    done = subprocess.run(
        _command(seed, SECONDS, tmp_path), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    granted = re.search(r"(\d+) granted", done.stdout)
    assert granted is not None, done.stdout
    assert int(granted[1]) > 20, f"too little happened: {done.stdout}"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_broken_off_ends_its_processes(tmp_path: Path, by: signal.Signals) -> None:
    run = psutil.Popen(
        _command("1", 60, tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: len(list(tmp_path.glob("*.*.jsonl"))) >= 3, "that all play")
        children = run.children(recursive=True)
        assert len(children) >= 4, "three players and a server"
        run.send_signal(by)
        run.wait(20)
        until(lambda: not any(_lives(child) for child in children), "that all are ended")
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _command(seed: str, seconds: float, folder: Path) -> list[str]:
    options = ["--seconds", str(seconds), "--seed", seed, "--folder", str(folder)]
    return [sys.executable, "-m", "tests.chaos", *options]
