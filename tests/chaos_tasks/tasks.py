"""The tasks: one body, under several options.

A body works for some time, has its effect and ends as its message says. The effect is an entry in
the database beside those that the trigger makes of the guard's claim and finish.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from typing import Any

from django.db import InterfaceError, OperationalError

from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from tests.chaos_tasks.app import app, hesitate, tell
from tests.chaos_tasks.rows.models import Entry

__all__ = ["ATTEMPTS", "Broken"]

LOCK_TTL_SECONDS = 5.0
ATTEMPTS = {"skip": 5, "retry": 5, "alone": 5, "unique": 5, "once": 1, "poison": 3}
"""how often a message of each task may start and die"""


class Broken(Exception):
    """What a body raises that is told to fail."""


class Guard(StatusGuard):
    """Says when it is about to claim a row under a lock: what has judged the message is over."""

    def claim(self, pk: Any, fence: int | None = None) -> bool:
        tell("claims", name=str(pk), fence=fence)
        hesitate()
        return super().claim(pk, fence)


def body(self: Any, job: int, seconds: float, end: str, retries: int) -> str:
    """Work for so long, write the effect, and end: "return", "raise" or "kill" (this process)."""
    request, run, fence = self.request, uuid.uuid4().hex[:12], self.lease.fence
    here: dict[str, Any] = {"call": request.id, "name": str(job), "run": run, "fence": fence}
    tell("started", **here, task=self.name, retries=request.retries)
    over = "broke"
    try:
        time.sleep(seconds)
        if end == "kill":
            tell("kills itself", **here)
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "raise":
            raise Broken("as the message says")
        if request.retries < retries:
            over = "retries"
            raise self.retry(countdown=0)
        entry = Entry(job=job, what="effect", before="", after=run, fence=fence, moment=time.time())
        entry.save(force_insert=True)
        over = "end"
    finally:
        tell("over", **here, how=over, held=self.lease.held)
    return run


def guarded(name: str, **options: Any) -> Any:
    """A task that locks and guards a job's row, with these options."""
    guard = Guard(
        "chaos_tasks.Job", pk="job", source=["new"], to="running", done="done", failed="failed",
        fence_field="lock_fence",
    )  # fmt: skip
    make: Any = app.task
    return make(
        bind=True,
        base=LockedTask,
        name=name,
        acks_late=True,
        # Of the body's own statements; what they leave half done the next try does again.
        autoretry_for=(OperationalError, InterfaceError),
        retry_kwargs={"max_retries": None, "countdown": 0.1},
        max_retries=None,
        lock_name="job:{job}",
        lock_ttl=LOCK_TTL_SECONDS,
        lock_max_attempts=ATTEMPTS[name],
        guard=guard,
        **options,
    )(body)


guarded("skip")
guarded("retry", on_conflict="retry", lock_retry_for=600)
guarded("alone", on_outage="run")
guarded("unique", unique_while="unfinished", unique_for=600)
guarded("once")
guarded("poison")
