"""The Celery app of the benchmarks, and one no-op task for each way to lock it."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.site.settings")

from celery import Celery
from celery.signals import worker_ready
from django.core.cache import cache

from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard

URL = os.environ.get("BENCHMARK_REDIS_URL", "redis://127.0.0.1:6379/0")
RECIPE_TIMEOUT_SECONDS = 7200
LOCK_TTL_SECONDS = float(os.environ.get("BENCHMARK_LOCK_TTL", "60"))

READY = os.environ.get("BENCHMARK_READY")
"""a file that a worker makes when it is ready"""

app = Celery("benchmarks", broker=URL, backend=os.environ.get("BENCHMARK_RESULTS"))
app.conf.update(
    task_ignore_result="BENCHMARK_RESULTS" not in os.environ,
    task_default_queue="benchmarks",
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 3600},
    worker_send_task_events=False,
    ONCE={
        "backend": "celery_once.backends.Redis",
        "settings": {"url": URL, "default_timeout": 3600},
    },
    singleton_backend_url=URL,
)


@worker_ready.connect
def _ready(**_: Any) -> None:
    if READY is not None:
        Path(READY).touch()


def _job() -> Any:
    """The model, which Django has not loaded yet when this module is imported."""
    return import_module("benchmarks.site.models").Job


def body(_number: int, path: str | None) -> None:
    """Nothing; or, with a path, note who works, and stay at it if that is the first time."""
    if path is None:
        return
    first = not Path(path).exists()
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")
    if first:
        time.sleep(600)


@app.task
def plain(number: int, path: str | None = None) -> None:
    body(number, path)


@app.task(acks_late=True)
def plain_acks_late(number: int, path: str | None = None) -> None:
    body(number, path)


@app.task
def recipe(number: int, path: str | None = None) -> None:
    key = f"recipe:{number}"
    if not cache.add(key, "locked", RECIPE_TIMEOUT_SECONDS):
        return
    try:
        body(number, path)
    finally:
        cache.delete(key)


@app.task(base=LockedTask, lock_name="job:{number}", lock_ttl=LOCK_TTL_SECONDS)
def locked(number: int, path: str | None = None) -> None:
    body(number, path)


@app.task(
    base=LockedTask,
    lock_name="job:{number}",
    lock_ttl=LOCK_TTL_SECONDS,
    acks_late=True,
    reject_on_worker_lost=True,
)
def locked_acks_late(number: int, path: str | None = None) -> None:
    body(number, path)


@app.task(
    base=LockedTask,
    lock_name="job:{number}",
    lock_ttl=LOCK_TTL_SECONDS,
    guard=StatusGuard(
        "site.Job", pk="number", source=["ready"], to="processing", done="done", failed="failed"
    ),
)
def locked_guarded(number: int, path: str | None = None) -> None:
    body(number, path)


@app.task
def recipe_guarded(number: int, path: str | None = None) -> None:
    """The lock and the two status updates, as people write them."""
    key = f"recipe:{number}"
    if not cache.add(key, "locked", RECIPE_TIMEOUT_SECONDS):
        return
    try:
        jobs = _job().objects.filter(pk=number)
        if not jobs.filter(status="ready").update(status="processing"):
            return
        body(number, path)
        jobs.filter(status="processing").update(status="done")
    finally:
        cache.delete(key)


@app.task
def say_done(path: str) -> None:
    """The last one in the queue: those before it have run."""
    Path(path).touch()


def _peers() -> dict[str, Any]:
    """The peers' tasks that can be had here."""
    found: dict[str, Any] = {}
    # By default heimdall's task would wait for its own lock for a second.
    heimdall = {"heimdall": {"unique": True, "unique_lock_blocking": False}}
    for title, module, base, options in (
        ("celery-once", "celery_once", "QueueOnce", {"once": {"keys": ["number"]}}),
        ("celery-singleton", "celery_singleton", "Singleton", {"unique_on": ["number"]}),
        ("celery-heimdall", "celery_heimdall", "HeimdallTask", heimdall),
    ):
        try:
            kind = getattr(import_module(module), base)
        except ImportError:
            continue

        def work(number: int, path: str | None = None) -> None:
            body(number, path)

        name = f"benchmarks.{module}"
        register: Any = app.task
        found[title] = register(base=kind, name=name, **options)(work)
    return found


PEERS = _peers()
TASKS: dict[str, Any] = {
    "plain task": plain,
    "plain task, acks_late": plain_acks_late,
    "cache.add + delete": recipe,
    "django-tasklock": locked,
    "django-tasklock, acks_late": locked_acks_late,
    "two updates in cache.add + delete": recipe_guarded,
    "django-tasklock, guarded": locked_guarded,
    **PEERS,
}
