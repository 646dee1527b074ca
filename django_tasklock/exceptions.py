"""
The errors of this package.

::

    TaskLockError
    ├── LockNotAcquired        somebody else holds the lock, and waiting did not help
    │   └── AlreadyQueued      the job is in the queue, or running, already
    ├── LeaseLost              the lease ended before its holder released it
    ├── StoreUnavailable       the store did not answer: nothing is known of the lock
    ├── ListingNotSupported    this store cannot list its locks
    ├── RequeueFailed          a task's message could not be sent back to its queue
    ├── StatusConflict         the guarded row is no longer ours to finish
    └── TooManyAttempts        a task's message has ended too many of its runs
    InvalidLockConfig          the settings or a task's options are wrong

Contention, loss and outage are three different things: none of them is ever reported
as another. Every class can be pickled: a pool child sends it to its worker, and the worker
stores it in a result backend.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured

from ._values.lock_info import LockInfo

__all__ = [
    "AlreadyQueued", "InvalidLockConfig", "LeaseLost", "ListingNotSupported", "LockNotAcquired",
    "RequeueFailed", "StatusConflict", "StoreUnavailable", "TaskLockError", "TooManyAttempts",
]  # fmt: skip


class TaskLockError(Exception):
    """The base of all errors that occur while a lock is in use."""

    # A subclass's attributes fill it. They are its arguments too, of which a pickle makes it again.
    _text: ClassVar[str] = ""

    def __str__(self) -> str:
        return self._text.format(self) or super().__str__()


class LockNotAcquired(TaskLockError):
    """The lock is held by somebody else.

    ``name`` is the lock's name. ``holder`` is the `LockInfo` of the lease that was in the way when
    the caller gave up. It is None where the store did not say, and in an error that a result
    backend has stored as JSON. ``hint``: what to do, or "".
    """

    def __init__(self, name: str, holder: LockInfo | None = None, hint: str = "") -> None:
        super().__init__(name, holder, *([hint] if hint else []))
        self.name, self.hint = name, hint
        # Celery makes the error again from arguments that JSON has turned into text.
        self.holder = holder if isinstance(holder, LockInfo) else None

    def __str__(self) -> str:
        if self.holder is None and self.args[1] is not None:
            return f"the lock {self.name!r} is taken"  # Held or cooling.
        if self.holder is not None and self.holder.cooling:
            return f"the lock {self.name!r} is cooling down for {self.holder.ttl or 0.0:.1f} s more"
        held_by = f" by {self.holder.owner}" if self.holder and self.holder.token else ""
        return f"the lock {self.name!r} is held{held_by}{f', {self.hint}' if self.hint else ''}"


class AlreadyQueued(LockNotAcquired):
    """A message of the job ``name`` is waiting or running already; ``task_id`` is its task id.

    ``holder`` is the `LockInfo` of the lease of its run; None if it waits.
    """

    def __init__(
        self, name: str, holder: LockInfo | None = None, task_id: str | None = None
    ) -> None:
        super().__init__(name, holder)
        self.args = (name, holder, task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        where = "is in the queue" if self.args[1] is None else "is running"
        which = f", as {self.task_id}" if self.task_id else ""
        return f"the job {self.name!r} {where} already{which}"


class LeaseLost(TaskLockError):
    """The lease on ``name`` is over, though its holder had not released it.

    ``reason`` says how that was noticed. Work that was done since then may have run at the same
    time as the next holder's.
    """

    _text = "the lease on {0.name!r} is lost: {0.reason}"

    def __init__(self, name: str, reason: str = "the lease is over") -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class StoreUnavailable(TaskLockError):
    """The store behind the alias ``store`` did not answer, or refused the command.

    Nothing is known of the lock: it is neither held nor not held.
    """

    _text = "the lock store {0.store!r} is unavailable: {0.reason}"

    def __init__(self, store: str, reason: str = "no answer") -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason


class ListingNotSupported(TaskLockError):
    """The store behind the alias ``store`` cannot do something that needs more than single locks.

    ``what`` says what it cannot do.
    """

    _text = "the lock store {0.store!r} cannot {0.what}"

    def __init__(self, store: str, what: str = "list its locks") -> None:
        super().__init__(store, what)
        self.store, self.what = store, what


class RequeueFailed(TaskLockError):
    """The message of the task ``task``, id ``task_id``, had to wait and could not be sent again.

    It will not run. Either the task has no ``acks_late``, so the broker does not have the message
    any more. Or its queue has delivered it so often (``x-delivery-count``) that it would drop it.
    ``reason`` says what sending it raised.
    """

    _text = "{0.task}[{0.task_id}] could not be requeued, and will not run: {0.reason}"

    def __init__(self, task: str, task_id: str, reason: str) -> None:
        super().__init__(task, task_id, reason)
        self.task, self.task_id, self.reason = task, task_id, reason


class StatusConflict(TaskLockError):
    """The guarded row was changed by somebody else: this run's result does not count.

    ``model`` is the model's label, ``pk`` the row's primary key.
    """

    _text = "{0.model} {0.pk!r} was changed meanwhile: its status or fence is not this run's"

    def __init__(self, model: str, pk: Any) -> None:
        super().__init__(model, pk)
        self.model, self.pk = model, pk


class TooManyAttempts(TaskLockError):
    """The task ``task``, id ``task_id``, was started ``runs`` times and never came to its end: its
    worker was killed, its body left it, or its lease was lost, each time. It is not started
    again."""

    _text = "{0.task}[{0.task_id}] was started {0.runs} times and never ended"

    def __init__(self, task: str, task_id: str, runs: int) -> None:
        super().__init__(task, task_id, runs)
        self.task, self.task_id, self.runs = task, task_id, runs


class InvalidLockConfig(ImproperlyConfigured):
    """A setting, or an option of a task, is wrong. Raised before anything is sent."""
