"""Uniqueness in the queue: one waiting copy of a job, or one unfinished one.

A job is known by its task and its lock's name. While a copy waits, a reservation holds its task
id:

* ``unique_while="queued"``: the reservation ends when the copy has the lock and starts, so that
  one may run and one may wait.
* ``unique_while="unfinished"``: the same, and while the lock is held a new copy is a duplicate
  too. So a running copy is known by its lease, which ends with its process, and not by a
  reservation that would stand until it times out.

Not applied to a message of a group, chord or chain, to one with callbacks, nor to one that
replaces a task: returning somebody else's result would leave others waiting. What a run sends of
itself, its retries and what goes back to the queue, is never refused.

Who is refused is told of a copy that starts later. So a copy gives its reservation up before it
looks at anything, and one that comes to nothing looks at the lock once more after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery import states
from celery.utils.time import maybe_iso8601, maybe_make_aware

from ..exceptions import AlreadyQueued, StoreUnavailable
from ..lease import LockInfo
from ..queued import key_of
from .delivery import Delivery, keeps_results

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = [
    "Reservation",
    "concerns",
    "give_up",
    "own_options",
    "reserve_again",
    "send_once",
    "unique_for",
]

UNIQUE_FOR = "tasklock_unique_for"
"""the message header with a call's own ``unique_for``: a retry, and what goes back to the queue,
reserve for as long"""

CANVAS = ("group_id", "chord", "link", "link_error", "replaced_task_nesting")
"""options of a message that other messages depend on"""


class Reservation:
    """The reservation of one job in the queue, for one task id."""

    def __init__(self, task: LockedTask, name: str, task_id: str) -> None:
        self._task = task
        self._store = task.locks.store
        self._name = name
        self._key = key_of(task.name, name)
        self._id = task_id
        self._unfinished = task.unique_while == "unfinished"

    def take(self, ttl: float, *, running: bool = False) -> str | LockInfo | None:
        """Reserve for ``ttl`` seconds; None when done, else the task id or lease in the way.

        With ``running`` the lock may be held: it is held by ourselves.
        """
        held = self._name if self._unfinished and not running else None
        other = self._store.reserve(self._key, self._id, ttl, unless_held=held)
        if isinstance(other, LockInfo) and not self._is_copy(other):
            other = self._store.reserve(self._key, self._id, ttl)
        if isinstance(other, str) and not running and self._is_revoked(other):
            other = self._store.reserve(self._key, self._id, ttl, over=other)
        return other

    def _is_copy(self, holder: LockInfo) -> bool:
        """Whether the lock is held by a run of this task that has a message, and will end."""
        owner = holder.owner
        if owner.task != self._task.name or owner.task_id is None:
            return False
        return bool(self._task.acks_late) or owner.alive() is not False

    def _is_revoked(self, task_id: str) -> bool:
        """Whether the copy that waits is known not to start any more."""
        if not keeps_results(self._task):
            return False
        try:
            return bool(self._task.backend.get_task_meta(task_id)["status"] == states.REVOKED)
        except Exception:
            return False  # Then it is known when its message arrives.

    def look(self) -> str | LockInfo | None:
        """What a new call would be a duplicate of, as `take` would find it; reserves nothing."""
        other = self._store.recall(self._key)
        if other is not None:
            return None if self._is_revoked(other) else other
        holder = self._store.get(self._name) if self._unfinished else None
        return holder if holder is not None and self._is_copy(holder) else None

    def give_up(self) -> None:
        """End the reservation, if it is ours."""
        self._store.unreserve(self._key, self._id)


def give_up(delivery: Delivery, name: str) -> None:
    """End the reservation of a message that starts, or comes to nothing."""
    if delivery.queued and delivery.task.unique_while is not None:
        Reservation(delivery.task, name, delivery.id).give_up()


def reserve_again(delivery: Delivery, name: str, error: BaseException) -> None:
    """Called before the lock of a run that raised is released: its message may wait in the queue
    again."""
    task = delivery.task
    if isinstance(error, Exception) and not getattr(error, "requeue", False):
        return
    if delivery.survives and task.unique_while is not None:
        with suppress(StoreUnavailable):
            ttl = unique_for(task, delivery.request.headers)
            Reservation(task, name, delivery.id).take(ttl, running=True)


def send_once(
    task: LockedTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    on_duplicate: str,
    send: Callable[[], Any],
) -> Any:
    """Call ``send`` unless the job is in the queue already; then return that copy's result.

    Raises `AlreadyQueued` instead where ``on_duplicate`` says so, and `StoreUnavailable`.
    """
    name = task.lock_name_of(args, kwargs)
    reservation = Reservation(task, name, task_id)
    ttl = _lifetime(task, options)
    own = _is_own(task, task_id, options)
    try:
        other = reservation.take(ttl, running=own)
    except StoreUnavailable:
        if not own and task.on_outage != "run":
            raise
        return send()
    if other is not None and not own:
        return _duplicate(task, name, other, on_duplicate)
    try:
        return send()
    except BaseException:
        if not own:
            with suppress(StoreUnavailable):
                reservation.give_up()
        raise


def own_options(task: LockedTask, options: dict[str, Any]) -> str:
    """Take what one call says for itself out of its options: ``unique_for`` goes into the
    message's headers, ``on_duplicate`` is returned, or the task's own."""
    if "unique_for" in options:
        headers = options.get("headers") or {}
        options["headers"] = {**headers, UNIQUE_FOR: float(options.pop("unique_for"))}
    return str(options.pop("on_duplicate", task.on_duplicate))


def unique_for(task: LockedTask, headers: Mapping[str, Any] | None) -> float:
    """Seconds for which a message with these headers may wait."""
    own = (headers or {}).get(UNIQUE_FOR)
    return float(own) if isinstance(own, int | float) and own > 0 else task.unique_for


def concerns(task: LockedTask, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether a message with these options is to be unique."""
    if task.unique_while is None or task.app.conf.task_always_eager:
        return False
    if any(options.get(option) for option in CANVAS) or options.get("chain") is not None:
        return False
    # A callback has a parent among its options; so has a retry, which is our own.
    return not options.get("parent_id") or _is_own(task, task_id, options)


def _is_own(task: LockedTask, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether a run sends itself: a retry, or back to the queue."""
    return bool(options.get("retries")) or (task_id is not None and task.request.id == task_id)


def _duplicate(task: LockedTask, name: str, other: str | LockInfo, on_duplicate: str) -> Any:
    task_id = other.owner.task_id if isinstance(other, LockInfo) else other
    if on_duplicate == "raise":
        raise AlreadyQueued(name, other if isinstance(other, LockInfo) else None, task_id)
    return task.AsyncResult(task_id or "")


def _lifetime(task: LockedTask, options: Mapping[str, Any]) -> float:
    """Seconds for which a copy may wait: until its ETA, and then ``unique_for``; at most until
    it expires."""
    wait = float(options.get("countdown") or 0)
    if options.get("eta") is not None:
        wait = max(wait, _until(task, options["eta"]))
    ttl = max(wait, 0.0) + unique_for(task, options.get("headers"))
    expires = options.get("expires", getattr(task, "expires", None))
    if isinstance(expires, int | float):
        ttl = min(ttl, float(expires))
    elif expires is not None:
        ttl = min(ttl, _until(task, expires))
    return max(ttl, 0.001)


def _until(task: LockedTask, moment: Any) -> float:
    when: Any = maybe_iso8601(moment)
    aware: datetime = maybe_make_aware(when, task.app.timezone)
    return aware.astimezone(timezone.utc).timestamp() - time.time()
