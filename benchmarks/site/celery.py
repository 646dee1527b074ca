"""The Celery app of the benchmarks, and one no-op task for each way to lock it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.site.settings")

from celery import Celery
from django.core.cache import cache

from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard

URL = os.environ.get("BENCHMARK_REDIS_URL", "redis://127.0.0.1:6379/0")
RECIPE_TIMEOUT_SECONDS = 7200

app = Celery("benchmarks", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_default_queue="benchmarks",
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
    ONCE={
        "backend": "celery_once.backends.Redis",
        "settings": {"url": URL, "default_timeout": 3600},
    },
)

TASKS: dict[str, Any] = {}


def body(number: int, path: str | None = None) -> None:
    """Nothing; or, with a path, note who works, and stay at it if that is the first time."""
    if path is None:
        return
    first = not Path(path).exists()
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()} {time.monotonic()} {number}\n")
    if first:
        time.sleep(600)


@contextmanager
def _recipe(number: int) -> Iterator[bool]:
    """The lock as people write it: whether it was granted."""
    key = f"recipe:{number}"
    if not cache.add(key, "locked", RECIPE_TIMEOUT_SECONDS):
        yield False
        return
    try:
        yield True
    finally:
        cache.delete(key)


def recipe(number: int, path: str | None = None) -> None:
    with _recipe(number) as granted:
        if granted:
            body(number, path)


def recipe_guarded(number: int, path: str | None = None) -> None:
    """The lock, and the two updates of the status."""
    with _recipe(number) as granted:
        # Models are not loaded yet when this module is imported.
        jobs = import_module("benchmarks.site.models").Job.objects.filter(pk=number)
        if granted and jobs.filter(status="ready").update(status="processing"):
            body(number, path)
            jobs.filter(status="processing").update(status="done")


@app.task
def say_done(path: str) -> None:
    """The last one in the queue: those before it have run."""
    Path(path).touch()


@app.task
def count_calls() -> None:
    """Count the calls of Python functions in this process from now on."""
    calls[0] = 0
    sys.setprofile(_count)


@app.task
def say_calls(path: str) -> None:
    """Say how many they were."""
    sys.setprofile(None)
    Path(path).write_text(str(calls[0]))


def _count(_frame: object, event: str, _arg: object) -> None:
    calls[0] += event == "call"


calls = [0]


def add(title: str, run: Callable[..., None] = body, **options: Any) -> None:
    register: Any = app.task(name=title, **options)
    TASKS[title] = register(run)


LOCKED: dict[str, Any] = {"base": LockedTask, "lock_name": "job:{number}", "lock_ttl": 60}
GUARD = StatusGuard(
    "site.Job", pk="number", source=["ready"], to="processing", done="done", failed="failed"
)

add("a plain task")
add("cache.add and delete", recipe)
add("celery-once", base=import_module("celery_once").QueueOnce, once={"keys": ["number"]})
add("django-tasklock", **LOCKED)
add("django-tasklock, acks_late", **LOCKED, acks_late=True, reject_on_worker_lost=True)
add("two updates in cache.add and delete", recipe_guarded)
add("django-tasklock, guarded", **LOCKED, guard=GUARD)
