"""A task with a lock and a guard, run in this process: what any store must do for it."""

from __future__ import annotations

from typing import Any

from celery import Celery

from django_tasklock import lock, locks
from django_tasklock.celery import LockedTask
from tests.app.models import Job
from tests.celery_tasks.conftest import job_guard, status
from tests.steps import holder

__all__ = ["assert_an_eager_task_locks_and_guards"]


def assert_an_eager_task_locks_and_guards() -> None:
    """On the store "default"; the test needs a database."""
    app: Any = Celery("eager", broker="memory://", set_as_current=False, fixups=[])
    app.conf.update(task_always_eager=True)

    def work(self: Any, job: int) -> str:
        assert holder(self.lease.name).owner.task == self.name
        assert Job.objects.get(pk=job).lock_fence == self.lease.fence
        return "worked"

    options = {"base": LockedTask, "bind": True, "lazy": False, "shared": False}
    task = app.task(work, lock_name="job:{job}", guard=job_guard(), **options)
    row = Job.objects.create()
    with lock(f"job:{row.pk}"):
        assert task.delay(row.pk).get()["reason"] == "already_processing"
    assert task.delay(row.pk).get() == "worked"
    assert (status(row), locks.is_locked(f"job:{row.pk}")) == ("done", False)
