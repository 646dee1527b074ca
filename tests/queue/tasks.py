"""Tasks that are unique in the queue, that coalesce, or whose rows the doctor looks at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import redis
from celery import Task
from django.apps import apps
from django.db import transaction

from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from tests.hard_cases import ledger
from tests.hard_cases.app import app
from tests.hard_cases.bodies import sleep
from tests.hard_cases.scripted import perform
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


class OnCommit(Task):
    """Sends when the transaction commits."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send later."""
        transaction.on_commit(lambda: super(OnCommit, self).apply_async(*args, **options))


class WithRows(Task):
    """Sends a row as its key, and hands the body the row."""

    def apply_async(self, args: Any = (), *rest: Any, **options: Any) -> Any:
        """Turn the row into its key, and leave a key as it is."""
        row, *others = args
        return super().apply_async((getattr(row, "pk", row), *others), *rest, **options)

    def __call__(self, row: Any, *args: Any) -> Any:
        """Turn the key into the row."""
        return super().__call__(apps.get_model(GUARD.label)._default_manager.get(pk=row), *args)


class MixedBefore(WithRows, OnCommit, LockedTask):
    """The other classes come first."""


class MixedAfter(LockedTask, WithRows, OnCommit):
    """The other classes come after ours."""


def mixed(name: str, base: Any) -> Any:
    """A task with other base classes, whose body gets the row."""

    @app.task(
        bind=True,
        base=base,
        name=name,
        acks_late=True,
        lock_name="job:{job}",
        lock_ttl=TTL,
        guard=GUARD,
        unique_while="queued",
        on_conflict="retry",
    )
    def task(self: Any, job: Any, script: Any = None) -> str:
        return perform(self, job.pk, script)

    return task


mixed_before = mixed("mixed_before", MixedBefore)
mixed_after = mixed("mixed_after", MixedAfter)


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
