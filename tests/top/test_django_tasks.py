"""``@task()`` over ``@locked``, on Django's own backend. `test_locked_tasks` has the functions."""

from __future__ import annotations

from typing import Any

import django
import pytest
from django.test import override_settings

from django_tasklock import lock, locks
from tests.app.models import Job
from tests.steps import orphan

pytestmark = [
    pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks since 6.0"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("on_redis"),
]
IMMEDIATE = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}


@override_settings(TASKS=IMMEDIATE)
@pytest.mark.parametrize("name", ["work", "work_in_async"])
def test_a_task_runs_under_its_lock_and_is_skipped_if_another_does(name: str) -> None:
    from tests import django_tasks

    task: Any = getattr(django_tasks, name)
    # Given a task that claims a row, and another process that holds its lock
    # I expect it to be skipped, and to say why
    job = Job.objects.create()
    with lock(f"job:{job.pk}"):
        assert task.enqueue(job.pk).return_value["reason"] == "already_processing"

    # Given a run whose worker was killed when it had claimed the row, and the task sent again
    # I expect the work to be done, once
    orphan(f"job:{job.pk}")
    Job.objects.update(status="running")
    result = task.enqueue(job_id=job.pk)
    assert (result.status.name, result.return_value) == ("SUCCESSFUL", "worked")
    job.refresh_from_db()
    assert (job.status, job.done_count) == ("done", 1)
    assert task.enqueue(job.pk).return_value["reason"] == "invalid_state"
    assert not locks.count()


@override_settings(TASKS=IMMEDIATE)
def test_a_task_may_raise_and_its_id_is_the_owners() -> None:
    from tests import django_tasks

    in_async: Any = django_tasks.in_async
    with lock("async:7"):
        failed = in_async.enqueue(7)
    assert failed.errors[0].exception_class_path == "django_tasklock.exceptions.LockNotAcquired"
    assert in_async.enqueue(7).return_value is True
    with_context = django_tasks.with_context.enqueue(7)
    assert with_context.return_value == with_context.id
