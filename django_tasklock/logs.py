"""
One log line for each skip, loss and clear, on the logger ``django_tasklock``.

They are receivers of the signals, so that the core has no log lines of its own. Nothing
listens to ``lock_acquired`` and ``lock_released``: they are sent for every single lease,
and a receiver would cost each of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .describe import duration, printable
from .lease import Lease, LockInfo
from .owner import Owner
from .signals import lock_cleared, lock_contended, lock_lost

if TYPE_CHECKING:
    from .queued import QueuedJob

__all__ = ["connect", "log_reservation_cleared"]

logger = logging.getLogger("django_tasklock")


def connect() -> None:
    """Connect the receivers. Connecting twice is connecting once."""
    for signal, receiver in (
        (lock_contended, log_contended),
        (lock_lost, log_lost),
        (lock_cleared, log_cleared),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"django_tasklock.{receiver.__name__}")


def log_contended(
    *, name: str, store: str, holder: LockInfo | None, owner: Owner, waited: float, **_: Any
) -> None:
    """INFO: somebody else holds it, and the one who asked went without."""
    if not logger.isEnabledFor(logging.INFO):
        return
    logger.info(
        "lock %s in store %s is held by %s: refused to %s after waiting %s",
        printable(name),
        printable(store),
        _held_by(holder),
        printable(owner),
        duration(waited),
        extra=_fields(name, store, owner),
    )


def log_lost(*, lease: Lease, reason: str, **_: Any) -> None:
    """ERROR: a lease ended before its holder released it."""
    logger.error(
        "lock %s in store %s is lost to %s: %s",
        printable(lease.name),
        printable(lease.store),
        printable(lease.owner),
        printable(reason),
        extra=_fields(lease.name, lease.store, lease.owner),
    )


def log_cleared(
    *, name: str, store: str, holder: LockInfo | None, by: str | None, **_: Any
) -> None:
    """WARNING: a lock was taken from its holder by force."""
    logger.warning(
        "lock %s in store %s, held by %s, was cleared%s",
        printable(name),
        printable(store),
        _held_by(holder),
        f" by {printable(by)}" if by else "",
        extra=_fields(name, store, holder.owner if holder else Owner()),
    )


def log_reservation_cleared(job: QueuedJob, by: str) -> None:
    """WARNING: a message that may wait in the queue does not keep duplicates out any more."""
    owner = Owner(task=job.task, task_id=job.task_id)
    logger.warning(
        "the reservation of the job %s in store %s for the task %s[%s] was cleared by %s",
        printable(job.name),
        printable(job.store),
        printable(job.task),
        printable(job.task_id),
        printable(by),
        extra=_fields(job.name, job.store, owner),
    )


def _held_by(holder: LockInfo | None) -> str:
    return printable(holder.owner if holder else Owner())


def _fields(name: str, store: str, owner: Owner) -> dict[str, Any]:
    """For formatters that write structured logs. ``name`` itself is the record's own.

    Escaped as the message is: a formatter may write them as they are.
    """
    return {
        "lock_name": printable(name),
        "lock_store": printable(store),
        "lock_owner": {field: _safe(value) for field, value in owner.as_dict().items()},
        "lock_task_id": _safe(owner.task_id),
    }


def _safe(value: object) -> object:
    return printable(value) if isinstance(value, str) else value
