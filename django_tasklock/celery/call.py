"""A call of a task as it is sent, and what its message carries in our header.

What a message locks and reserves travels with it. Its run, the worker's main process, a requeue and
a retry read it there: a name that is computed twice may differ, if it depends on more than the
arguments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from celery import Task
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.utils.functional import cached_property

from .._compat.celery import delays_natively
from .._values.arguments import checked_slots, is_name
from .options import Names, TaskOptions

# The option of a call that is sent whatever is in the queue. It is an option because a mixin may
# send later: mixins pass options on, but no context variables.
ANYWAY = "tasklock_anyway"

# The message header with what a message must keep when it is requeued. It is a wire format:
# ``sent``, ``token``, ``copy``, ``tries``, ``joined``, the fields of `Names`, and the keys below.
HEADER = "tasklock"
# The key that the call has reserved.
RESERVED = "reserved"
# The name of the serializer with which the message came: the main process tells its run.
SERIALIZER = "serializer"
# Whether the run that sent it went on, as with ``throw=False``: a result may be of that run.
BESIDE = "beside"
# The handle of the lease under which the run goes on.
LEASE = "lease"
# The moment of a debounced call, in nanoseconds since the epoch.
MOMENT = "moment"
# When a holder of the lock first refused this try of the message, in seconds since the epoch, and
# the number of its retries. An outage that requeues the message removes it.
REFUSED = "refused"

# When the call was sent of which the message is a retry, in seconds since the epoch; or when it was
# first refused, if its sender did not say when it was sent.
CALLED = "called"

# Sends a call, and returns its result.
Send = Callable[[], Any]


class Call:
    """A call of ``task`` that is being sent, with the options of its message."""

    def __init__(
        self, task: TaskOptions, args: Any, kwargs: Any, task_id: str | None, options: Any
    ) -> None:  # fmt: skip
        self.task, self.args, self.kwargs = task, args or (), kwargs or {}
        self.id: str = task_id or uuid()
        self.draws_id = task_id is None
        self.anyway: bool = options.pop(ANYWAY, False)
        self.options: dict[str, Any] = options
        # Whether the call runs here, at once.
        self.eager = bool(task.app.conf.task_always_eager)
        # Whether a run sends its own message again, as in a retry.
        self.own = bool(options.get("retries")) or task.request.id == self.id

    @cached_property
    def named(self) -> Names:
        """What the call locks and reserves. Raises `TypeError` or `ValueError` for wrong arguments,
        and what a function of the project's raises."""
        request: Any = self.task.request
        if self.own:  # A retry of the same work, whatever its row says by now.
            given = (self.options.get("headers") or {}).get(HEADER)
            if given is None and is_of(request, self.args, self.kwargs):
                given = request.__dict__.get(HEADER)
            if named := named_by(self.task, given):
                return named
        return self.task.naming.named(self.args, self.kwargs)

    @property
    def name(self) -> str:
        """The name of the lock. Raises as `named` does."""
        return self.named.name

    def note(self, **ours: Any) -> None:
        """Write into our header of the message."""
        headers = self.options.get("headers") or {}
        self.options["headers"] = {**headers, HEADER: {**(headers.get(HEADER) or {}), **ours}}

    def carry(self) -> None:
        """Have the message carry what its run and a requeue need to know of the call."""
        # A task id may be used again: the time distinguishes one sending from another.
        ours: dict[str, Any] = {"sent": time.time()}
        if self.own and (given := self.task.request.__dict__.get(HEADER)):
            ours |= {BESIDE: given.get(BESIDE), CALLED: given.get(CALLED) or given.get("sent")}
            if self.task.conflict.replaces:
                ours[MOMENT] = given.get(MOMENT)
            self.options.setdefault(SERIALIZER, given.get(SERIALIZER) or self.task.serializer)
        with suppress(Exception):  # Its run calls the project's function, and says what is wrong.
            ours |= {key: value for key, value in self.named._asdict().items() if value}
        self.note(**ours)

    def publish(self) -> Any:
        """Have Celery send the message. Returns and raises what Celery does."""
        options = self.options
        if (options.get("countdown") or options.get("eta")) and not self.eager:
            options = whole_seconds(self.task, options)
        return Task.apply_async(self.task, self.args, self.kwargs, task_id=self.id, **options)

    def seconds_to_expiry(self) -> float:
        """Return the seconds until the message expires; infinity if it does not."""
        expires = self.options.get("expires", self.task.expires)
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


def named_by(task: TaskOptions, ours: Any) -> Names | None:
    """Return what a message locks and reserves, by its own header; None if that is not valid. A
    number of slots that does not depend on the call is the task's of now."""
    now = type(task).lock_slots
    with suppress(TypeError, ValueError, KeyError, AttributeError):
        slots = checked_slots(ours["slots"], "slots") if callable(now) else now
        name, limits = ours["name"], ours.get("limits", ())
        if len(limits) == len(task.lock_limits) and all(map(is_name, (name, *limits))):
            return Names(name, slots, limits, ours.get("unique", ""))
    return None


def is_of(request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call has the arguments of the message of ``request``."""
    return [*args] == [*(request.args or ())] and dict(kwargs) == (request.kwargs or {})
