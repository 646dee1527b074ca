"""Tasks of Django 6 under locks; `tests/top/test_locked_tasks.py` runs them."""

from __future__ import annotations

import asyncio
from typing import Any

from django.db.models import F
from django.tasks import task

from django_tasklock import Lease, locks
from django_tasklock.guards import StatusGuard
from django_tasklock.tasks import locked
from tests.app.models import Job
from tests.steps import holder

guard = StatusGuard(
    "app.Job", pk="job_id", source="queued", to="running", done="done", failed="failed",
    fence_field="lock_fence",
)  # fmt: skip


@task()
@locked("job:{job_id}", guard=guard)
def work(job_id: int, *, lease: Lease | None = None) -> str:
    assert lease
    lease.assert_held()
    Job.objects.filter(pk=job_id).update(done_count=F("done_count") + 1)
    return "worked"


@task(takes_context=True)
@locked("context:{number}")
def with_context(context: Any, number: int) -> str | None:
    return holder(f"context:{number}").owner.task_id


@task()
@locked("async:{number}", on_conflict="raise")
async def in_async(number: int) -> bool:
    return await asyncio.to_thread(locks.is_locked, f"async:{number}")


@task()
@locked("job:{job_id}", guard=guard)
async def work_in_async(job_id: int) -> str:
    await Job.objects.filter(pk=job_id).aupdate(done_count=F("done_count") + 1)
    return "worked"
