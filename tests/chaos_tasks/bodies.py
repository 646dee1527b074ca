"""What runs now, for faults that have to meet a run in its body, or before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.lines import whole_lines

__all__ = ["claiming", "replaced", "running"]

TAIL = 4000
"""bytes of a history that hold its last events"""


def running(folder: Path, pid: int) -> tuple[int, int, str] | None:
    """The job, the fence and the task of the body in a process; None if there is none, or it has
    no lease."""
    for event in _last_events(folder, pid):
        if event["kind"] in ("over", "ended"):
            return None
        if event["kind"] == "started":
            fence = event["fence"]
            return None if fence is None else (int(event["name"]), fence, event["task"])
    return None


def claiming(folder: Path, pid: int) -> tuple[int, int] | None:
    """The job and the fence of the run that has its lock in a process, and its row not yet."""
    event = next(_last_events(folder, pid), None)
    if event is None or event["kind"] not in ("granted", "claims") or event["fence"] is None:
        return None
    return int(event["name"]), event["fence"]


def _last_events(folder: Path, pid: int) -> Iterator[dict[str, Any]]:
    """The last events of a process, the newest first."""
    try:
        with (folder / f"{pid}.jsonl").open("rb") as history:
            history.seek(max(0, history.seek(0, 2) - TAIL))
            lines = whole_lines(history.read())
    except OSError:
        return
    for line in reversed(lines):
        if line.startswith(b'{"at"'):  # The first may be a part of one.
            yield json.loads(line)


def replaced(job: int, fence: int) -> bool:
    """Whether another run has the row."""
    from tests.chaos_tasks.rows.models import Job

    rows = Job._default_manager.filter(pk=job, status="running")
    return bool(rows.exclude(lock_fence=fence).exists())
