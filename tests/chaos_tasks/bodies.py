"""What runs now, for faults that have to meet a body at work."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["replaced", "running"]

TAIL = 4000
"""bytes of a history that hold its last events"""


def running(folder: Path, pid: int) -> tuple[int, int] | None:
    """The job and the fence of the body in a process; None if there is none that may run twice."""
    try:
        with (folder / f"{pid}.jsonl").open("rb") as history:
            history.seek(max(0, history.seek(0, 2) - TAIL))
            lines = history.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"kind":"over"' in line or b'"kind":"ended"' in line:
            return None
        if b'"kind":"started"' in line and line.startswith(b"{"):
            event = json.loads(line)
            again = event["task"] not in ("once", "poison") and event["fence"] is not None
            return (int(event["name"]), event["fence"]) if again else None
    return None


def replaced(job: int, fence: int) -> bool:
    """Whether another run has the row."""
    from tests.chaos_tasks.rows.models import Job

    rows = Job._default_manager.filter(pk=job, status="running")
    return bool(rows.exclude(lock_fence=fence).exists())
