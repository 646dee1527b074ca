"""The last step before Celery sends a locked task, after all other classes of the task.

Mixins override ``apply_async``: they send when the transaction commits, or turn objects into ids.
Only after all of them it is known that a message is sent now, and with which arguments.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial
from typing import Any, cast

from celery import Task
from celery.utils import uuid

from .._compat.celery import delays_natively
from ..exceptions import StoreUnavailable
from .base import TaskBase
from .body import Body
from .debounce import debounces, send_debounced
from .due import waiting_seconds
from .handing import checked_handle, end_detached
from .headers import ANYWAY, BESIDE, FIRST, HEADER, LEASE
from .redelivered import is_uuid
from .unique import concerns, own_options, send_once

__all__ = ["Sending"]


class Sending(Task):
    """Does not send duplicates."""

    abstract = True

    def apply_async(  # type: ignore[override]
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Any:
        """As `celery.Task.apply_async`; a duplicate of a task with ``unique_while`` is not sent.

        With ``debounce`` the message is delayed. Raises `AlreadyQueued` and `StoreUnavailable`.
        """
        task = cast("TaskBase", self)
        anyway = options.pop(ANYWAY, False)
        on_duplicate = own_options(task, options)
        headers = options.get("headers") or {}
        first = HEADER not in headers
        handle = options.pop(LEASE, None)
        if handle is not None:
            handle = checked_handle(task, handle, args or (), kwargs or {})
            headers = {**headers, HEADER: {"sent": time.time(), LEASE: handle}}
            options["headers"] = headers
        elif first:
            # A task id may be used again: the time distinguishes one sending from another.
            ours = {"sent": time.time()}
            if options.get("retries"):
                ours |= _first_try(task, task_id, options["retries"])
            options["headers"] = {**headers, HEADER: ours}
        if first and not anyway and debounces(task, task_id, options):
            task_id = task_id or uuid()
            send = partial(self._publish, args, kwargs, task_id=task_id)
            return send_debounced(task, args or (), kwargs or {}, task_id, options, send)
        if anyway or not concerns(task, task_id, options):
            return self._publish(args, kwargs, task_id=task_id, **options)
        task_id = task_id or uuid()
        send = partial(self._publish, args, kwargs, task_id=task_id, **options)
        sent = send_once(task, args or (), kwargs or {}, task_id, options, on_duplicate, send)
        if handle is not None and sent.id != task_id:
            # A duplicate: the message that is in the queue takes the lock itself.
            with suppress(StoreUnavailable):
                end_detached(task, handle)
        return sent

    def send_again(self, args: Any, kwargs: Any, **options: Any) -> Any:
        """Send a message again at once, without the ``apply_async`` of other classes.

        They have changed its arguments already. And a mixin that sends when the transaction commits
        would lose it: the run of a requeued message ends with an exception, which rolls back.
        """
        return Sending.apply_async(self, args, kwargs, **options)

    def _publish(self, args: Any, kwargs: Any, **options: Any) -> Any:
        """Have Celery send the message, with a delay that the broker takes."""
        app = self.app
        delayed = options.get("countdown") or options.get("eta")
        if delayed and not app.conf.task_always_eager and delays_natively(app):
            wait = waiting_seconds(cast("TaskBase", self), options)
            options |= {"countdown": math.ceil(wait), "eta": None}
        return super().apply_async(args, kwargs, **options)


def _first_try(task: TaskBase, task_id: str | None, retries: int) -> dict[str, float]:
    """`FIRST`, and `BESIDE`, for the next try of the message whose run sends it."""
    request: Any = task.request
    body: Body | None = getattr(request, "tasklock_body", None)
    if body is None or task_id != request.id or retries <= (request.retries or 0):
        return {}
    body.retried = True  # Perhaps without `retry`.
    # An id of the caller's own, of a sender that does not say when it has sent, may be used again.
    known = body.first is not None or is_uuid(task_id)
    ours: dict[str, float] = {FIRST: body.first or 0.0} if known else {}
    return ours | {BESIDE: True} if body.goes_on else ours
