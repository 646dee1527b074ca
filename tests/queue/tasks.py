"""Tasks that are unique in the queue, that coalesce, or whose rows the doctor looks at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import redis

from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from tests.hard_cases import ledger
from tests.hard_cases.app import app
from tests.hard_cases.bodies import sleep
from tests.hard_cases.tasks import TTL, scripted
from tests.hard_cases.waiting import wait_until

GUARD = StatusGuard(
    "hard_cases.Job",
    pk="job",
    field="status",
    source=["new"],
    to="working",
    done="done",
    failed="failed",
    fence_field="lock_fence",
)
counters: Any = redis.Redis.from_url(os.environ.get("HARD_CASES_LOCKS", "redis://127.0.0.1:1/0"))

early = scripted("early_work", acks_late=False, reject_on_worker_lost=False, guard=GUARD)
late = scripted("late_work", guard=GUARD)
queued = scripted("queued", unique_while="queued", on_conflict="retry", lock_wait=20)
unfinished = scripted("unfinished", unique_while="unfinished", on_conflict="retry", lock_wait=20)


@app.task(
    bind=True,
    base=LockedTask,
    name="count",
    acks_late=True,
    reject_on_worker_lost=True,
    lock_name="count:{job}",
    lock_ttl=TTL,
    on_conflict="coalesce",
)
def count(self: Any, job: int, seconds: float = 0.0, gate: str | None = None) -> int:
    """Reads the job's counter, and is busy then; ``gate``: until that file is there."""
    saw = int(counters.get(f"counter:{job}") or 0)
    ledger.write("saw", job=job, saw=saw, task_id=self.request.id)
    sleep(seconds)
    if gate:
        wait_until(Path(gate).exists, 120, f"the gate {gate}")
    ledger.write("counted", job=job, task_id=self.request.id)
    return saw
