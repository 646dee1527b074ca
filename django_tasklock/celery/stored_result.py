"""What the result backend says of a call: whether its run has ended, and how."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timezone
from typing import Any

from celery import states
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.signals import task_prerun
from celery.utils.time import maybe_iso8601

from .._compat.celery import counts_parts_once, keeps_successes
from .._compat.celery import keeps_results as backend_keeps_results
from .base import TaskBase
from .headers import HEADER
from .redelivered import is_marked, is_old

__all__ = [
    "BackendSilent",
    "acked_at_time_limit",
    "count_part",
    "has_ended",
    "keeps_results",
    "restore_success",
    "stored_before",
    "stored_state",
]

logger = logging.getLogger("django_tasklock")

STORED = "tasklock_stored"
"""the attribute of a request that has what was stored before the worker took the message"""


class BackendSilent(Exception):
    """The result backend did not answer. The lock store may still know enough."""


def keeps_results(task: TaskBase) -> bool:
    """Return whether the task's result backend knows the state of a call."""
    return backend_keeps_results(task.backend)


@task_prerun.connect
def _look_before_started(task: Any, **_: Any) -> None:
    """Read the result of a redelivery before Celery stores STARTED, with ``track_started``.

    Most of Celery's backends never overwrite a success, but others do: django-celery-results.
    """
    if not isinstance(task, TaskBase) or not task.track_started or not keeps_results(task):
        return
    request: Any = task.request
    ours = (request.headers or {}).get(HEADER)
    ours = ours if isinstance(ours, dict) else {}
    # Of a message that nothing marks, another run may have ended: see `redelivered`.
    unmarked = task.acks_late and not keeps_successes(task.backend)
    if unmarked or is_marked(request, ours) or is_old(task.app, ours):
        with suppress(Exception):  # A silent backend is noticed when its answer is needed.
            setattr(request, STORED, task.backend.get_task_meta(request.id))


def stored_before(request: Any) -> Any:
    """Return what was stored before Celery stored STARTED for this request; None: not known."""
    return request.__dict__.pop(STORED, None)


def restore_success(task: TaskBase, meta: Any) -> None:
    """Store the success that Celery's STARTED of a dropped redelivery has overwritten.

    ``meta``: from `stored_before`. If the backend does not answer, this is logged, not raised.
    """
    if meta is None or meta["status"] != states.SUCCESS:
        return
    request: Any = task.request
    backend = task.backend
    try:
        if backend.get_task_meta(request.id, cache=False)["status"] == states.STARTED:
            backend.store_result(request.id, meta["result"], states.SUCCESS, request=request)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        logger.warning(
            "the result of %s[%s] could not be stored again: %s", task.name, request.id, error
        )


def count_part(task: TaskBase) -> None:
    """Count a dropped redelivery in its chord, if its result is stored.

    Celery stores the result first, and then counts the part. A run that was killed between the two
    has not counted it, and the chord's body would never run. If the backend does not answer, this
    is logged, not raised.
    """
    request: Any = task.request
    backend = task.backend
    if not request.chord or not counts_parts_once(backend):
        return
    try:
        meta: Any = backend.get_task_meta(request.id)
        if meta["status"] == states.SUCCESS:
            backend.on_chord_part_return(request, states.SUCCESS, meta["result"])
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        logger.warning("%s[%s] could not be counted in its chord: %s", task.name, request.id, error)


def stored_state(
    task: TaskBase, task_id: Any, sent: float | None, before: Any = None
) -> str | None:
    """Return the state of the call ``task_id``; None if the result backend cannot know it.

    ``sent``: when the message was first sent, in seconds since the epoch; None if that is not
    known. A result that is older than that belongs to an earlier use of the task id. ``before``:
    from `stored_before`. Raises `BackendSilent` if the backend does not answer.
    """
    try:
        meta: Any = task.backend.get_task_meta(task_id)
        if before is not None and meta["status"] == states.STARTED:
            meta = before
        state = str(meta["status"])
        if sent is not None and _was_before(meta.get("date_done"), sent):
            # Most backends never overwrite a success, so the later result may be missing.
            return None if state == states.SUCCESS else states.PENDING
        return state
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        raise BackendSilent(str(error)) from error


def has_ended(task: TaskBase, task_id: Any, since: float) -> bool:
    """Return whether a call is known to have ended, by a result that was stored after ``since``.

    ``since``: in seconds since the epoch. False if the backend does not answer.
    """
    try:
        meta: Any = task.backend.get_task_meta(task_id)
        if meta["status"] == states.REVOKED:
            return True
        if isinstance(meta.get("result"), TimeLimitExceeded) and not acked_at_time_limit(task):
            return False  # The message may come back. The worker's main process knows.
        return meta["status"] in states.READY_STATES and not _was_before(
            meta.get("date_done"), since
        )
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        return False


def acked_at_time_limit(task: Any) -> bool:
    """Return whether a message whose run was killed at its hard time limit does not come back."""
    acked = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
    return bool(acked or not task.acks_late)


def _was_before(done: Any, moment: float) -> bool:
    """Return whether a result was stored before a moment, in seconds since the epoch."""
    try:
        when = maybe_iso8601(done)
        if when is None:
            return False
        # A backend that stores no time zone means UTC, or local time.
        zones = (timezone.utc, None) if when.tzinfo is None else (when.tzinfo,)
        return all(when.replace(tzinfo=zone).timestamp() < moment for zone in zones)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
