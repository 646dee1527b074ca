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
from tests.hard_cases import ledger
from tests.hard_cases.app import app
from tests.hard_cases.scripted import Boom, perform, sleep
from tests.hard_cases.tasks import LOCK_TTL_SECONDS, job_guard, scripted
from tests.waiting import until

GUARD = job_guard(to="working")
counters: Any = redis.Redis.from_url(os.environ.get("HARD_CASES_LOCKS", "redis://127.0.0.1:1/0"))

early = scripted("early_work", acks_late=False, reject_on_worker_lost=False, guard=GUARD)
late = scripted("late_work", guard=GUARD)
queued = scripted("queued", unique_while="queued", on_conflict="retry", lock_wait=20)
cooled = scripted(
    "cooled", lock_hold_at_least=3600, lock_cooldown=3600, lock_cooldown_after_error=3600
)
unfinished = scripted("unfinished", unique_while="unfinished", on_conflict="retry", lock_wait=20)

flaky = scripted(
    "flaky", unique_while="queued", on_conflict="retry", autoretry_for=(Boom,),
    default_retry_delay=1, retry_backoff=False, max_retries=None,
)  # fmt: skip

debounced = scripted("debounced", debounce=4)
watched = scripted("watched", on_conflict="run", lock_max_attempts=3)


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


class Mixed(WithRows, OnCommit, LockedTask):
    """The other classes come first."""


@app.task(
    bind=True, base=Mixed, name="mixed", acks_late=True, lock_name="job:{job}", guard=GUARD,
    lock_ttl=LOCK_TTL_SECONDS, unique_while="queued", on_conflict="retry",
)  # fmt: skip
def mixed(self: Any, job: Any, script: Any = None) -> str:
    """A task with other base classes, whose body gets the row."""
    return perform(self, job.pk, script)


@app.task(
    bind=True,
    base=LockedTask,
    name="count",
    acks_late=True,
    lock_name="count:{job}",
    lock_ttl=LOCK_TTL_SECONDS,
    on_conflict="coalesce",
)
def count(self: Any, job: int, seconds: float = 0.0, gate: str | None = None) -> int:
    """Reads the job's counter, and is busy then; ``gate``: until that file is there."""
    saw = int(counters.get(f"counter:{job}") or 0)
    ledger.write("saw", job=job, saw=saw, task_id=self.request.id)
    sleep(seconds)
    if gate:
        until(Path(gate).exists, f"the gate {gate}", 120)
    ledger.write("counted", job=job, task_id=self.request.id)
    return saw


@app.task(
    bind=True,
    base=LockedTask,
    name="tenants_job",
    acks_late=True,
    lock_name="tenant:{tenant}",
    lock_slots=2,
    lock_ttl=LOCK_TTL_SECONDS,
    lock_wait=0,
    on_conflict="retry",
)
def tenants_job(self: Any, job: int, tenant: str, script: Any = None) -> str:
    """One of many jobs of a tenant."""
    ledger.write("permit", job=job, tenant=tenant, slot=self.lease.slot)
    return perform(self, job, script)
