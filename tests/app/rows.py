"""The guard of the tests' jobs, rows for it, and what a row says."""

from __future__ import annotations

from typing import Any

from django_tasklock.guards import StatusGuard
from tests.app.models import Job

__all__ = ["guard", "job", "of"]


def guard(model: Any = "app.Job", kind: type[StatusGuard] = StatusGuard, **options: Any) -> Any:
    """One with a fence, unless ``fence_field`` is None."""
    own: dict[str, Any] = {
        "source": ["queued", "again"], "to": "working", "done": "done", "failed": "failed",
        "fence_field": "lock_fence",
    }  # fmt: skip
    return kind(model, **own | options)


def job(status: str = "queued", fence: int | None = None, **fields: Any) -> Job:
    row: Job = Job.objects.create(status=status, lock_fence=fence, **fields)
    return row


def of(row: Job) -> tuple[str, int | None]:
    """Its status and its fence now."""
    row.refresh_from_db()
    return row.status, row.lock_fence
