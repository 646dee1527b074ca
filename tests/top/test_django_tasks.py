"""``@task()`` over ``@locked``, on Django's own backend and on a queue in the database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import override_settings

from django_tasklock import lock, locks
from tests.app.models import Job
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks since 6.0"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("on_redis"),
]
PATIENCE = 90.0
"""seconds; each process imports Django on a machine that may be busy"""
SETUP = "import django, json\ndjango.setup()\nfrom tests.django_tasks import *\n"
MIGRATE = "from django.core.management import call_command; call_command('migrate')"
RESULTS = """
from django_tasks_db.models import DBTaskResult
job = Job.objects.get()
print(json.dumps([job.status, job.done_count,
    [[row.status, row.return_value] for row in DBTaskResult.objects.order_by("enqueued_at")]]))
"""


@override_settings(
    TASKS={"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
)
def test_tasks_run_under_their_locks() -> None:
    from tests import django_tasks

    tasks: Any = django_tasks
    job = Job.objects.create()
    with lock(f"job:{job.pk}"), lock("async:7"):
        refused = tasks.work.enqueue(job.pk)
        failed = tasks.in_async.enqueue(7)
    assert refused.return_value["reason"] == "already_processing"
    assert failed.errors[0].exception_class_path == "django_tasklock.exceptions.LockNotAcquired"
    result = tasks.work.enqueue(job_id=job.pk)
    assert (result.status.name, result.return_value) == ("SUCCESSFUL", "worked")
    job.refresh_from_db()
    assert (job.status, job.done_count) == ("done", 1)
    assert tasks.work.enqueue(job.pk).return_value["reason"] == "invalid_state"
    # A task with a context is the owner
    with_context = tasks.with_context.enqueue(7)
    assert with_context.return_value == with_context.id
    assert tasks.in_async.enqueue(7).return_value is True
    assert tasks.work_in_async.enqueue(Job.objects.create().pk).return_value == "worked"
    assert not locks.count()


@pytest.mark.slow
def test_of_two_workers_one_works_and_the_next_takes_over_from_a_killed_one(
    process_env: Callable[[], dict[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("django_tasks_db") if not os.environ.get("CI") else None
    environment = process_env() | {
        "DJANGO_SETTINGS_MODULE": "tests.tasks_settings",
        "TASKLOCK_TEST_DATABASE": str(tmp_path / "tasks.sqlite3"),
        "TASKS_FOLDER": str(tmp_path),
    }

    def run(program: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", SETUP + program],
            env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE,
        ).stdout  # fmt: skip

    def worker() -> Any:
        """A worker that ends when the queue is empty."""
        command = [sys.executable, "-m", "django", "db_worker", "--batch", "--interval", "0.1"]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    run(MIGRATE)
    # Given the same job four times in the queue, a run that does not end, and two workers
    (tmp_path / "hang").touch()
    run("job = Job.objects.create()\nfor _ in range(4): work.enqueue(job.pk)")
    workers = [worker(), worker()]
    try:
        # I expect one to work, and the other one to skip the other three meanwhile
        until(lambda: [each.poll() for each in workers].count(0) == 1, "a worker", PATIENCE)
        # When the one is killed, and the task is sent again, which nothing does by itself
        (started,) = tmp_path.glob("started-*")
        (first,) = [each for each in workers if started.name == f"started-{each.pid}"]
        first.kill()
        (tmp_path / "hang").unlink()
        run("work.enqueue(Job.objects.get().pk)")
        workers.append(worker())
        assert workers[-1].wait(PATIENCE) == 0
    finally:
        for each in workers:
            each.kill()
            each.wait()
    # I expect the lock to be taken over, and the row to be claimed again
    status, times, results = json.loads(run(RESULTS))
    assert (status, times) == ("done", 2)
    values = [value["reason"] if isinstance(value, dict) else value for _, value in results]
    assert sorted(values[:-1], key=str) == [None, *["already_processing"] * 3]
    assert results[-1] == ["SUCCESSFUL", "worked"]
