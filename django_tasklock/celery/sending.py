"""One call that is sent: when it is due, when it expires, and how it is published."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from celery import Task
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.db.models import Model
from kombu.exceptions import EncodeError

from .._compat.celery import delays_natively
from .message import HEADER
from .options import TaskOptions

__all__ = ["ANYWAY", "Call", "Send", "waiting_seconds", "whole_seconds"]

# The option of a call that is sent whatever is in the queue. It is an option because a mixin may
# send later: mixins pass options on, but no context variables.
ANYWAY = "tasklock_anyway"

# Sends a call, and returns its result.
Send = Callable[[], Any]


class Call:
    """A call of ``task`` that is being sent, with the options of its message."""

    def __init__(
        self, task: TaskOptions, args: Any, kwargs: Any, task_id: str | None, options: Any
    ) -> None:  # fmt: skip
        self.task, self.args, self.kwargs = task, args, kwargs
        self.id: str = task_id or uuid()
        self.draws_id = task_id is None
        self.anyway: bool = options.pop(ANYWAY, False)
        self.options: dict[str, Any] = options

    @property
    def own(self) -> bool:
        """Whether a run sends its own message again, as in a retry."""
        return bool(self.options.get("retries")) or self.task.request.id == self.id

    @property
    def name(self) -> str:
        """The name of the lock. Raises `TypeError` or `ValueError` for wrong arguments."""
        return self.task.naming.name_of(self.args or (), self.kwargs or {})

    @property
    def slots(self) -> int:
        """How many calls with this name may run at once."""
        return self.task.naming.slots_of(self.args or (), self.kwargs or {})

    @property
    def eager(self) -> bool:
        """Whether the call runs here, at once."""
        return bool(self.task.app.conf.task_always_eager)

    def note(self, **ours: Any) -> None:
        """Write into our header of the message."""
        headers = self.options.get("headers") or {}
        self.options["headers"] = {**headers, HEADER: {**(headers.get(HEADER) or {}), **ours}}

    def publish(self) -> Any:
        """Have Celery send the message. Returns and raises what Celery does."""
        options = self.options
        if (options.get("countdown") or options.get("eta")) and not self.eager:
            options = whole_seconds(self.task, options)
        try:
            return Task.apply_async(self.task, self.args, self.kwargs, task_id=self.id, **options)
        except EncodeError as error:
            given = self.task.naming.arguments_of(self.args or (), self.kwargs or {})
            for name, value in given.items():
                if isinstance(value, Model):
                    what = f"the argument {name} is a model instance, which a message cannot hold"
                    raise EncodeError(f"task {self.task.name}: {what}. Send its key") from error
            raise

    def seconds_to_expiry(self) -> float:
        """Return the seconds until the message expires; infinity if it does not."""
        expires = self.options.get("expires", getattr(self.task, "expires", None))
        return math.inf if expires is None else _until(self.task, expires)


def whole_seconds(task: TaskOptions, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a delayed message with a delay that the broker takes: RabbitMQ's quorum
    queues delay by whole seconds of at least one."""
    if delays_natively(task.app):
        seconds = math.ceil(waiting_seconds(task, options))
        options = {**options, "countdown": seconds, "eta": None}
    return options


def waiting_seconds(task: TaskOptions, options: Mapping[str, Any]) -> float:
    """Return the seconds until a message with these options may run."""
    eta = options.get("eta")
    return max(float(options.get("countdown") or 0), 0.0 if eta is None else _until(task, eta))


def _until(task: TaskOptions, moment: Any) -> float:
    """Return the seconds until an ETA or an expiry in any form that Celery takes."""
    if isinstance(moment, int | float):
        return float(moment)
    aware: datetime = maybe_make_aware(maybe_iso8601(moment), task.app.timezone)  # type: ignore[arg-type]
    return aware.astimezone(timezone.utc).timestamp() - time.time()
