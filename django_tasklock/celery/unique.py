"""Uniqueness in the queue: of one job, one message may wait, or one may be unfinished.

A job is a task and the name of its lock. While a message waits, a reservation holds its task id:

* ``unique_while="queued"``: the reservation ends when the message's run has the lock and starts.
  So one run may run, and one message may wait.
* ``unique_while="unfinished"``: as "queued", and while the lock is held a new message is a
  duplicate too. A run is recognised by its lease, which ends with its process; a reservation would
  last until it times out.

It does not apply to a message of a group, chord or chain, to one with callbacks, or to one that
replaces a task: others would wait for a result that belongs to another message. What a run sends
of itself, its retries and its requeued message, is never refused.

A message that ends in any other way ends its reservation too, before it reaches its run (`ending`)
or in it. If the store does not answer then, later calls learn from the result backend that it has
ended.

A refused call relies on a run that starts after the call. So a run ends its reservation before it
reads anything, unless it runs without the store (``on_outage="run"``): then it does so as soon as
the store answers, at its end if need be. A message that ends its reservation without a run tries
the lock once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .._engine.lease import Lease
from .._engine.renewal import renewal
from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..exceptions import AlreadyQueued, ListingNotSupported, StoreUnavailable
from ..operators.reservations import key_of
from ..stores.base import Note
from .base import TaskBase
from .delivery import Delivery
from .due import seconds_to_expiry, waiting_seconds
from .headers import UNIQUE_FOR
from .outcomes import tell_not_run
from .redelivered import is_uuid
from .stored_result import has_ended, keeps_results

__all__ = [
    "Reservation",
    "concerns",
    "give_up",
    "is_own",
    "own_options",
    "reserve_again",
    "send_once",
    "unique_for",
]

logger = logging.getLogger("django_tasklock")

CANVAS = ("group_id", "chord", "link", "link_error", "replaced_task_nesting")
"""options of a message on which other messages depend"""


class Reservation:
    """The reservation of one job in the queue, for one task id."""

    def __init__(self, task: TaskBase, name: str, task_id: str) -> None:
        self._task = task
        self._store = task.locks.store
        self._name = name
        self._key = key_of(task.name, name)
        self._id = task_id
        self._unfinished = task.unique_while == "unfinished"

    def take(self, ttl: float, *, running: bool = False) -> str | LockInfo | None:
        """Reserve for ``ttl`` seconds.

        ``running``: this message's own run holds the lock, so the lock may be held. Returns None
        if it is reserved, or else the task id or the lease of which this is a duplicate. Raises
        `StoreUnavailable`.
        """
        held = self._name if self._unfinished and not running else None
        other = self._store.reserve(self._key, self._id, ttl, unless_held=held)
        if isinstance(other, LockInfo) and not self._is_same_job(other):
            other = self._store.reserve(self._key, self._id, ttl)
        if isinstance(other, str) and not running and self._has_ended(other):
            other = self._store.reserve(self._key, self._id, ttl, over=other)
        return other

    def _is_same_job(self, holder: LockInfo) -> bool:
        """Return whether the holder is a run of this task that has a message and will end. One that
        cools has ended: no run would come after the call."""
        owner = holder.owner
        if holder.cooling or owner.task != self._task.name or not owner.runs:
            return False
        return bool(self._task.acks_late) or owner.alive() is not False

    def _has_ended(self, task_id: str) -> bool:
        """Return whether the message that has the reservation will not start any more.

        Its worker could not end the reservation, because the store did not answer.
        """
        task = self._task
        if not keeps_results(task):
            return False
        # A reservation lasts until ``unique_for`` after its message was due. A result from before
        # that moment is of an earlier use of the task id.
        earliest = time.time() - task.unique_for
        return has_ended(task, task_id, earliest) and (
            has_ended(task, task_id, earliest + self._left())
        )

    def _left(self) -> float:
        """Return for how many more seconds the job is reserved; 0 if the store cannot tell."""
        try:
            found = self._store.reservations(f"{self._task.name} {self._name}")
        except ListingNotSupported:
            return 0.0
        return next((each.ttl or 0.0 for each in found if each.key == self._key), 0.0)

    def peek(self) -> str | LockInfo | None:
        """Return what `take` would return for a new call. Reserves nothing."""
        other = self._store.get_note(self._key)
        if other is not None:
            return None if self._has_ended(other) else other
        holder = self._store.get(self._name) if self._unfinished else None
        return holder if holder is not None and self._is_same_job(holder) else None

    def give_up(self) -> None:
        """End the reservation, if it has this task id."""
        self._store.unreserve(self._key, self._id)

    def give_up_soon(self, seconds: float) -> None:
        """`give_up`, as soon as the store answers within so many seconds. Raises nothing.

        Not for an id of the caller's own: by then it may have been used again.
        """
        if not is_uuid(self._id):
            return
        note = Note(self._key, self._id, seconds)
        renewal.owe(self._name, note, seconds, self._store, undo=True)


def give_up(delivery: Delivery, name: str) -> None:
    """End the reservation of a message that starts, or that will not run.

    Only once: if the task id is used again, a later reservation belongs to another message. Raises
    `StoreUnavailable`; the next call tries again.
    """
    if delivery.queued and delivery.reserved and delivery.task.unique_while is not None:
        Reservation(delivery.task, name, delivery.id).give_up()
        delivery.reserved = False


def reserve_again(delivery: Delivery, name: str, lease: Lease, error: BaseException) -> None:
    """Reserve for a message that waits in the queue again because its run was interrupted.

    Called with the run's error before its ``lease`` is released. If that was lost, a redelivery may
    have started, which does not end the reservation a second time.
    """
    task = delivery.task
    if isinstance(error, Exception) and not getattr(error, "requeue", False):
        return
    if delivery.survives and task.unique_while is not None:
        with suppress(StoreUnavailable):
            ttl = unique_for(task, delivery.request.headers)
            reservation = Reservation(task, name, delivery.id)
            reservation.take(ttl, running=True)
            if not (lease.held or lease._is_detached()):
                # Asked afterwards, since this run may be held up between the two.
                reservation.give_up()


def send_once(
    task: TaskBase,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    on_duplicate: str,
    send: Callable[[], Any],
) -> Any:
    """Call ``send`` unless the job is in the queue already. Returns the result of its message.

    With ``on_duplicate="raise"`` it raises `AlreadyQueued` for a duplicate. Raises
    `StoreUnavailable`, except with ``on_outage="run"``.
    """
    name = task.lock_name_of(args, kwargs)
    reservation = Reservation(task, name, task_id)
    ttl = _lifetime(task, options)
    own = is_own(task, task_id, options)
    try:
        other = reservation.take(ttl, running=own)
    except StoreUnavailable:
        if not own and task.on_outage != "run":
            reservation.give_up_soon(ttl)  # It may have been made, and nothing is sent.
            raise
        return send()
    if other is not None and not own:
        return _duplicate(task, name, other, on_duplicate)
    try:
        return send()
    except BaseException:
        # A retry that cannot be sent ends its task; with acks_late its message comes back, and
        # `reserve_again` reserves for it. What is requeued is tried again, or has a message still.
        again = (options.get("retries") or 0) > (task.request.retries or 0)
        if not own or again or hasattr(task.request, "tasklock_lease"):
            with suppress(StoreUnavailable):
                reservation.give_up()
        raise


def own_options(task: TaskBase, options: dict[str, Any]) -> str:
    """Remove the options of one call from ``options``, and return its ``on_duplicate``.

    A ``unique_for`` goes into the message's headers.
    """
    if "unique_for" in options:
        headers = options.get("headers") or {}
        options["headers"] = {**headers, UNIQUE_FOR: float(options.pop("unique_for"))}
    return str(options.pop("on_duplicate", task.on_duplicate))


def unique_for(task: TaskBase, headers: Mapping[str, Any] | None) -> float:
    """Return for how many seconds a message with these headers may wait."""
    own = (headers or {}).get(UNIQUE_FOR)
    return float(own) if isinstance(own, int | float) and own > 0 else task.unique_for


def concerns(task: TaskBase, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether a message with these options must be unique."""
    if task.unique_while is None or task.app.conf.task_always_eager:
        return False
    if any(options.get(option) for option in CANVAS) or options.get("chain") is not None:
        return False
    # A callback has a parent among its options, but a retry or a requeued message has one too.
    return not options.get("parent_id") or is_own(task, task_id, options)


def is_own(task: TaskBase, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether a run sends its own message again: a retry, or a requeue."""
    return bool(options.get("retries")) or (task_id is not None and task.request.id == task_id)


def _duplicate(task: TaskBase, name: str, other: str | LockInfo, on_duplicate: str) -> Any:
    task_id = other.owner.task_id if isinstance(other, LockInfo) else other
    where = "running" if isinstance(other, LockInfo) else "queued"
    tell_not_run(task, "duplicate", where, task_id, name)
    if on_duplicate == "raise":
        raise AlreadyQueued(name, other if isinstance(other, LockInfo) else None, task_id)
    logger.info(
        "a call of %s was not sent: %s %s already, lock %s",
        task.name, printable(task_id), "runs" if isinstance(other, LockInfo) else "waits", name,
    )  # fmt: skip
    return task.AsyncResult(task_id or "")


def _lifetime(task: TaskBase, options: Mapping[str, Any]) -> float:
    """Return for how many seconds a message may wait.

    That is until its ETA and ``unique_for`` longer, but not after it expires.
    """
    ttl = waiting_seconds(task, options) + unique_for(task, options.get("headers"))
    return max(min(ttl, seconds_to_expiry(task, options)), 0.001)
