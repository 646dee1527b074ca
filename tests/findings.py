"""What the doctor finds, and how it comes about."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.exceptions import NotRegistered

from django_tasklock.guards import StatusGuard
from tests.app.models import Job
from tests.inside import diagnose
from tests.mailroom import Mailroom

__all__ = ["fenced", "guard", "lost", "thrown_away"]


def guard(**options: Any) -> StatusGuard:
    named = {"pk": "job", "source": "queued", "to": "processing", "done": "done"}
    return StatusGuard(Job, **{**named, "failed": "failed", **options})


def fenced(**options: Any) -> StatusGuard:
    return guard(fence_field="lock_fence", **options)


def lost() -> set[Any]:
    """The keys of the rows that the doctor calls lost."""
    return {problem.pk for problem in diagnose() if problem.kind == "lost work"}


def thrown_away(room: Mailroom, task_id: str, state: str = states.FAILURE) -> None:
    """A worker throws a message away before it makes a request of it, and stores that."""
    room.take(task_id)
    room.app.backend.store_result(task_id, NotRegistered("old"), state)
