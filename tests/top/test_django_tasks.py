"""``@task()`` over ``@locked``, on Django's own backend and on a queue in the database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import override_settings

from django_tasklock import lock, locks
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks since 6.0"),
    pytest.mark.django_db(transaction=True),
]
PATIENCE = 90.0
"""seconds; each process imports Django on a machine that may be busy"""


@pytest.fixture(autouse=True)
def redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def tasks() -> Iterator[Any]:
    """``tests/django_tasks.py``, with tasks that run where they are sent."""
    backend = "django.tasks.backends.immediate.ImmediateBackend"
    with override_settings(TASKS={"default": {"BACKEND": backend}}):
        from tests import django_tasks

        yield django_tasks


def test_task_runs_under_the_lock_and_claims_its_row(tasks: Any) -> None:
    job = Job.objects.create()
    with lock(f"job:{job.pk}"):
        refused = tasks.work.enqueue(job.pk)
        assert refused.return_value["reason"] == "already_processing"
    result = tasks.work.enqueue(job_id=job.pk)
    assert (result.status.name, result.return_value) == ("SUCCESSFUL", "worked")
    job.refresh_from_db()
    assert (job.status, job.done_count) == ("done", 1)
    assert tasks.work.enqueue(job.pk).return_value["reason"] == "invalid_state"
    assert not locks.is_locked(f"job:{job.pk}")


def test_task_with_a_context_is_the_owner(tasks: Any) -> None:
    result = tasks.with_context.enqueue(7)
    assert result.return_value == result.id


def test_async_task_runs_under_the_lock_or_fails(tasks: Any) -> None:
    assert tasks.in_async.enqueue(7).return_value is True
    assert tasks.work_in_async.enqueue(Job.objects.create().pk).return_value == "worked"
    with lock("async:7"):
        result = tasks.in_async.enqueue(7)
    assert result.status.name == "FAILED"
    assert result.errors[0].exception_class_path == "django_tasklock.exceptions.LockNotAcquired"


class Queue:
    """A queue in a database of its own, and its workers."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.folder = folder
        self._environment = environment | {
            "DJANGO_SETTINGS_MODULE": "tests.tasks_settings",
            "TASKLOCK_TEST_DATABASE": str(folder / "tasks.sqlite3"),
            "TASKS_FOLDER": str(folder),
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.run("from django.core.management import call_command; call_command('migrate')")

    def run(self, program: str) -> str:
        """What a program prints that sends tasks, or looks at their rows."""
        text = f"import django, json\ndjango.setup()\nfrom tests.django_tasks import *\n{program}"
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=self._environment, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE,
        )  # fmt: skip
        return done.stdout

    def worker(self) -> subprocess.Popen[bytes]:
        """A worker that ends when the queue is empty."""
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "db_worker", "--batch", "--interval", "0.1"],
            env=self._environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._started.append(process)
        return process

    def started(self) -> list[int]:
        """The process ids of the workers in which the task has started."""
        return [int(path.name.partition("-")[2]) for path in self.folder.glob("started-*")]

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def queue(process_env: Callable[[], dict[str, str]], tmp_path: Path) -> Iterator[Queue]:
    pytest.importorskip("django_tasks_db") if not os.environ.get("CI") else None
    queue = Queue(process_env(), tmp_path)
    try:
        yield queue
    finally:
        queue.end()


RESULTS = """
from django_tasks_db.models import DBTaskResult
job = Job.objects.get()
print(json.dumps([job.status, job.done_count,
    [[row.status, row.return_value] for row in DBTaskResult.objects.order_by("enqueued_at")]]))
"""


@pytest.mark.slow
def test_of_two_workers_one_does_the_work(queue: Queue) -> None:
    # Given the same job four times in the queue, and two workers
    (queue.folder / "hang").touch()
    queue.run("job = Job.objects.create()\nfor _ in range(4): work.enqueue(job.pk)")
    workers = [queue.worker() for _ in range(2)]
    # I expect one to work, and the other one to skip the other three meanwhile
    until(lambda: [worker.poll() for worker in workers].count(0) == 1, "a worker", PATIENCE)
    assert len(queue.started()) == 1
    (queue.folder / "hang").unlink()
    assert [worker.wait(PATIENCE) for worker in workers] == [0, 0]
    status, times, results = json.loads(queue.run(RESULTS))
    assert (status, times) == ("done", 1)
    assert [state for state, _ in results] == ["SUCCESSFUL"] * 4
    values = [value if isinstance(value, str) else value["reason"] for _, value in results]
    assert sorted(values) == ["already_processing"] * 3 + ["worked"]


@pytest.mark.slow
def test_row_of_a_killed_worker_is_worked_on_when_the_task_is_sent_again(queue: Queue) -> None:
    # Given a worker that is killed during a run
    (queue.folder / "hang").touch()
    queue.run("work.enqueue(Job.objects.create().pk)")
    first = queue.worker()
    until(lambda: queue.started() == [first.pid], "a run", PATIENCE)
    first.kill()
    first.wait()
    # When its task is sent again, which nothing does by itself
    (queue.folder / "hang").unlink()
    queue.run("work.enqueue(Job.objects.get().pk)")
    assert queue.worker().wait(PATIENCE) == 0
    # I expect the lock to be taken over, and the row to be claimed again
    status, times, results = json.loads(queue.run(RESULTS))
    assert (status, times) == ("done", 2)
    assert results == [["RUNNING", None], ["SUCCESSFUL", "worked"]]
