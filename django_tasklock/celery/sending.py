"""The last step before Celery sends a locked task, whatever other classes the task has.

Mixins override ``apply_async``: they send when the transaction commits, or turn objects into ids.
Only behind all of them it is known that a message is sent now, and with which arguments.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from celery import Task
from celery.utils import uuid

from .requeue import ANYWAY, HEADER
from .unique import concerns, own_options, send_once

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["Sending"]


class Sending(Task):
    """Sends once what is to be unique. Of all classes of a task it comes last before `Task`.

    By Python's order of classes one that comes after `LockedTask` would come after this one, too.
    So each task's class gets this one as a base again, behind its other bases. A metaclass
    could do the same in its ``mro()``, but then no task could have a base with another metaclass,
    such as `abc.ABC`.
    """

    abstract = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if order[order.index(Task) - 1] is not Sending:
            bases = cls.__bases__
            # Not at the end: what comes after the last task among them stays behind `Task`.
            tasks = [base for base in bases if issubclass(base, Task) and base is not Task]
            end = bases.index(tasks[-1]) + 1
            cls.__bases__ = (*bases[:end], Sending, *bases[end:])

    def apply_async(  # type: ignore[override]
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Any:
        """As `celery.Task.apply_async`, if the task is not in the queue yet or need not be unique.

        Raises `AlreadyQueued` and `StoreUnavailable`.
        """
        task = cast("LockedTask", self)
        anyway = options.pop(ANYWAY, False)
        on_duplicate = own_options(task, options)
        headers = options.get("headers") or {}
        if HEADER not in headers:
            # A task id may be used again: this tells one sending of it from another.
            options["headers"] = {**headers, HEADER: {"sent": time.time()}}
        if anyway or not concerns(task, task_id, options):
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        task_id = task_id or uuid()
        send = partial(super().apply_async, args, kwargs, task_id=task_id, **options)
        return send_once(task, args or (), kwargs or {}, task_id, options, on_duplicate, send)

    def send_again(self, args: Any, kwargs: Any, **options: Any) -> Any:
        """Send what came as a message, as it came, at once: past all that other classes do.

        They have done it already; and what is deferred to the end of a transaction is lost if
        that is rolled back, as it is when the run of a message that goes back ends.
        """
        return Sending.apply_async(self, args, kwargs, **options)
