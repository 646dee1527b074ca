"""
One log line for each skip, loss, clear and hold, on the logger ``django_tasklock``.

They are receivers of the signals, so that the core has no log lines of its own. ``lock_acquired``
and ``lock_released`` have no receiver here: they are sent for every lease, and a receiver would
make each lease slower.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .._values.owner import Owner
from .._values.words import duration, logger, printable
from ..signals import lock_cleared, lock_contended, lock_held, lock_lost

if TYPE_CHECKING:
    # Every process that has the app connects the receivers, and most take no lock.
    from .._engine.lease import Lease
    from .._values.lock_info import LockInfo


def connect() -> None:
    """Connect the receivers. A second call changes nothing."""
    lock_contended.connect(log_contended)
    lock_lost.connect(log_lost)
    lock_cleared.connect(log_cleared)
    lock_held.connect(log_held)


def log_contended(
    *, name: str, store: str, holder: LockInfo, owner: Owner, waited: float, **_: Any
) -> None:
    """INFO: somebody else holds the lock, and the caller did not get it."""
    if logger.isEnabledFor(logging.INFO):
        values = _held_by(holder), owner, duration(waited)
        text = "lock %s in store %s is held by %s: refused to %s after waiting %s"
        _log(logging.INFO, text, name, store, owner, *values)


def log_lost(*, lease: Lease, reason: str, **_: Any) -> None:
    """ERROR: a lease ended before its holder released it."""
    text = "lock %s in store %s is lost by its holder %s: %s"
    _log(logging.ERROR, text, lease.name, lease.store, lease.owner, lease.owner, reason)


def log_cleared(
    *, name: str, store: str, holder: LockInfo | None, by: str | None, **_: Any
) -> None:
    """WARNING: a lock was taken from its holder by force."""
    owner = holder.owner if holder else Owner()
    text = "lock %s in store %s, held by %s, was cleared%s"
    _log(logging.WARNING, text, name, store, owner, _held_by(holder), f" by {by}" if by else "")


def log_held(*, name: str, store: str, holder: LockInfo, ttl: float, **_: Any) -> None:
    """WARNING: an operator holds a lock, so that no job takes it."""
    values = holder.owner.operator, duration(ttl), holder.reason or "no reason given"
    text = "lock %s in store %s is held by %s for %s: %s"
    _log(logging.WARNING, text, name, store, holder.owner, *values)


def log_reservation_cleared(name: str, store: str, task: str, task_id: str, by: str) -> None:
    """WARNING: a reservation was cleared, though its message may still wait in the queue."""
    owner = Owner(task=task, task_id=task_id)
    text = "the reservation of the job %s in store %s for the task %s[%s] was cleared by %s"
    _log(logging.WARNING, text, name, store, owner, task, task_id, by)


def log_run_beside(name: str, store: str, holder: LockInfo, task: str, task_id: str | None) -> None:
    """WARNING: a task runs without the lock, because it has ``on_conflict="run"``."""
    owner = Owner(task=task, task_id=task_id)
    text = "lock %s in store %s is held by %s: %s[%s] runs all the same, without it"
    _log(logging.WARNING, text, name, store, owner, _held_by(holder), task, task_id)


def _held_by(holder: LockInfo | None) -> str:
    cooling = ", cooling down" if holder is not None and holder.cooling else ""
    return f"{holder.owner if holder else Owner()}{cooling}"


def _log(level: int, text: str, name: str, store: str, owner: Owner, *values: object) -> None:
    """Write the line, with fields for formatters of structured logs; ``name`` is taken by the log
    record. They are escaped like the message, because a formatter may write them as they are."""
    fields = {
        "lock_name": printable(name),
        "lock_store": printable(store),
        "lock_owner": {field: _safe(value) for field, value in owner.as_dict().items()},
        "lock_task_id": _safe(owner.task_id),
    }
    logger.log(level, text, *map(printable, (name, store, *values)), extra=fields)


def _safe(value: object) -> object:
    return printable(value) if isinstance(value, str) else value
