"""A task with a lock and a guard, run in this process: what any store must do for it."""

from __future__ import annotations

from typing import Any

from celery import Celery

from django_tasklock import lock, locks
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.steps import holder

__all__ = ["assert_an_eager_task_locks_and_guards"]


def assert_an_eager_task_locks_and_guards() -> None:
    """On the store "default"; the test needs a database."""
    app = Celery("eager", broker="memory://", set_as_current=False, fixups=[])
    app.conf.update(task_always_eager=True)
    seen: list[Any] = []

    @app.task(
        base=LockedTask,
        bind=True,
        lazy=False,
        shared=False,
        lock_name="job:{pk}",
        guard=StatusGuard(
            "app.Job", pk="pk", source="queued", to="running", done="done",
            fence_field="lock_fence",
        ),
    )  # fmt: skip
    def work(self: Any, pk: int) -> str:
        seen.append((holder(f"job:{pk}").owner.task, Job.objects.get(pk=pk).lock_fence))
        seen.append(self.lease.fence)
        return "worked"

    job = Job.objects.create()
    with lock(f"job:{job.pk}"):
        assert work.delay(job.pk).get()["reason"] == "already_processing"
    assert work.delay(job.pk).get() == "worked"
    assert seen == [(work.name, seen[1]), seen[1]]
    job.refresh_from_db()
    assert job.status == "done"
    assert not locks.is_locked(f"job:{job.pk}")
