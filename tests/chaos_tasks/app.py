"""The Celery app of the workers: ``celery -A tests.chaos_tasks.app worker``.

What Celery and the package tell by signals goes into the history of the process that hears it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from pathlib import Path
from random import SystemRandom
from typing import Any

from celery import Celery, signals

from django_tasklock.signals import lock_acquired, lock_cleared, lock_lost, task_not_run
from tests.chaos.history import History

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos_tasks.settings")

SLOW_SHARE, SLOW_SECONDS = 0.05, 0.2
"""how many runs hesitate before they claim their row, and for how long"""
CHANCE = SystemRandom()  # Children are forks: of a seed they would all make the same.

# A worker that does not end is asked what its threads are at.
faulthandler.register(signal.SIGUSR2)

app = Celery("chaos_tasks", include=["tests.chaos_tasks.tasks"])
app.conf.update(json.loads(os.environ.get("CHAOS_TASKS_CELERY", "{}")))

_histories: dict[int, History] = {}


def tell(kind: str, call: str = "", name: str = "", **says: Any) -> None:
    """Write an event into this process's own history, if there is a run."""
    folder = os.environ.get("CHAOS_TASKS_HISTORY")
    if folder is None:
        return
    pid = os.getpid()
    if pid not in _histories:  # Pool processes are forks.
        _histories[pid] = History(Path(folder), str(pid))
    _histories[pid].write(kind, call=call, name=name, **says)


def job_of(args: Any) -> str:
    """The row that a message is about, as events name it."""
    return str(args[0]) if args else ""


@signals.task_received.connect(weak=False)
def note_received(request: Any, **kwargs: Any) -> None:
    """The main process has the message."""
    tell("received", request.id)


@signals.after_task_publish.connect(weak=False)
def note_published(headers: Any = None, **kwargs: Any) -> None:
    """The broker has a message: of the sender, a chain, a retry or a requeue."""
    tell("published", headers["id"], retries=headers.get("retries"))


@signals.task_prerun.connect(weak=False)
def note_began(task_id: str, task: Any, args: Any, **kwargs: Any) -> None:
    """The pool is about to call the task."""
    redelivered = bool((task.request.delivery_info or {}).get("redelivered"))
    tell(
        "began", task_id, job_of(args), task=task.name, retries=task.request.retries,
        redelivered=redelivered, worker=os.getppid(),
    )  # fmt: skip


@signals.task_postrun.connect(weak=False)
def note_ended(task_id: str, args: Any, retval: Any, state: Any, **kwargs: Any) -> None:
    """The call is over; ``skipped`` is the reason of a skip marker."""
    marker = retval if isinstance(retval, dict) and retval.get("status") == "skipped" else {}
    tell(
        "ended", task_id, job_of(args), state=state, skipped=marker.get("reason"),
        holder=marker.get("holder"),
    )  # fmt: skip


@signals.task_failure.connect(weak=False)
def note_failed(task_id: str, exception: Any, args: Any, **kwargs: Any) -> None:
    """The task has failed for good."""
    tell("failed", task_id, job_of(args), error=type(exception).__name__, text=str(exception)[:200])


def note_not_run(task_id: Any, outcome: str, reason: str, **kwargs: Any) -> None:
    """The package did not run a call: skipped, requeued, dropped or given up."""
    tell("not run", str(task_id or ""), outcome=outcome, reason=reason)


def note_lost(lease: Any, **kwargs: Any) -> None:
    """A lease was lost."""
    tell("lost", str(lease.owner.task_id or ""), lock=lease.name, fence=lease.fence)


def note_granted(lease: Any, **kwargs: Any) -> None:
    """A run has its lock, and is to claim its row."""
    job = lease.name.removeprefix("job:")
    tell("granted", str(lease.owner.task_id or ""), job, fence=lease.fence)
    hesitate()


def hesitate() -> None:
    """Be slow now and then, so that a fault can meet a run in this very place."""
    if CHANCE.random() < SLOW_SHARE:
        time.sleep(SLOW_SECONDS)


def note_cleared(name: str, cause: str, **kwargs: Any) -> None:
    """The lock of a dead process is free, or has gone to who asked for it."""
    tell("cleared", name=name.removeprefix("job:"), cause=cause)


lock_acquired.connect(note_granted, weak=False)
lock_cleared.connect(note_cleared, weak=False)
task_not_run.connect(note_not_run, weak=False)
lock_lost.connect(note_lost, weak=False)
