"""A minute's run, and what a run leaves behind when it is broken off."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import lives
from tests.seeds import drawn_seed
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "tests.nightly.chaos", "--seconds", "60"]


@pytest.mark.timeout(300)
def test_nothing_is_violated_in_a_minute(tmp_path: Path) -> None:
    seed = str(drawn_seed())
    command = [*COMMAND, "--seed", seed, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    granted = sum(map(int, re.findall(r"(\d+) granted", done.stdout)))
    assert granted > 100, f"too little happened: {done.stdout}"


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_broken_off_ends_its_processes(tmp_path: Path, by: signal.Signals) -> None:
    run = psutil.Popen([*COMMAND, "--folder", str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list(tmp_path.glob("*.*.jsonl"))) >= 3, "that all players have begun")
        children = run.children(recursive=True)
        assert len(children) >= 4, "three players and a server"
        run.send_signal(by)
        run.wait(30)
        until(lambda: not any(map(lives, children)), "that all are ended")
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
