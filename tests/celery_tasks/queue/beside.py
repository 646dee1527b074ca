"""Processes beside the workers of a stage."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT

__all__ = ["beat", "environment"]


def environment(stage: Stage) -> dict[str, str]:
    """That of a process beside the stage's workers."""
    conf = json.dumps(stage.conf)
    return {**os.environ, **stage.environment, "HARD_CASES_CELERY": conf}


@contextlib.contextmanager
def beat(stage: Stage, folder: Path, *options: str) -> Iterator[Path]:
    """A ``celery beat`` beside the workers; yields its log."""
    log = folder / "beat.log"
    schedule = f"--schedule={folder / 'schedule'}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.hard_cases.app", "beat"),
                *("-l", "INFO", "--pidfile=", schedule, *options),
            ],
            cwd=ROOT,
            env=environment(stage),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        end_beat(process)


def end_beat(process: subprocess.Popen[bytes]) -> None:
    """Beat ends by an exception from its signal handler. Python drops that in a finalizer, and
    Celery's `AsyncResult.__del__` is one that asks the backend: so it may have to be told again."""
    for _ in range(10):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
    process.kill()
    process.wait()
    raise AssertionError("beat did not end after ten SIGTERM")
