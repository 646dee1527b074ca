"""How the tests run the commands of `tests.chaos` and `tests.chaos_tasks`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.processes import lives
from tests.waiting import PATIENCE, until

__all__ = ["assert_breaks_off", "finished"]

ROOT = Path(__file__).resolve().parents[2]


def finished(command: Sequence[str]) -> str:
    """What a run has printed, in which nothing was violated."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def assert_breaks_off(
    command: Sequence[str],
    by: signal.Signals,
    begun: Callable[[], bool],
    processes: int,
    *,
    begins_within: float = PATIENCE,
    ends_within: float,
) -> None:
    """A run that gets a signal once it has ``begun`` ends all its processes, at least so many."""
    run = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(begun, "that the run has begun", begins_within)
        children = run.children(recursive=True)
        assert len(children) >= processes
        run.send_signal(by)
        run.wait(ends_within)
        until(lambda: not any(map(lives, children)), "that all are ended")
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
