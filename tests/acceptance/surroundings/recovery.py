"""What every tool is tried with: a double, a kill, a second run."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests import needs
from tests.acceptance.hard_cases.stage import Stage

__all__ = ["LONG_SECONDS", "need", "recovers"]

LONG_SECONDS = 300.0
"""a body that runs for so long is killed before"""


def need(module: str) -> None:
    """Skip, or fail in CI, where a package is missing; it is not imported here."""
    if importlib.util.find_spec(module) is None:
        needs.missing(f"{module} is not installed")


def recovers(stage: Stage, task: str = "guarded") -> tuple[Any, Any]:
    """A job's double is skipped, its process is killed, it runs again and is done once.

    There must be a worker with two processes. Returns the results of the job and of its double.
    """
    job, gate = stage.job(), stage.gate()
    result = stage.send(task, job, [{"seconds": LONG_SECONDS}, {"gate": str(gate)}])
    first = stage.started(job)
    double = stage.send(task, job)
    assert double.get(timeout=60)["holder"] == result.id
    stage.kill(first.pid)
    again = stage.started(job, 2)
    assert again.task_id == first.task_id
    assert again.fence > first.fence
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_done_once(job)
    stage.assert_settled()
    return result, double
