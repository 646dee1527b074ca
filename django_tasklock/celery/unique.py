"""``unique_while``: of one job, one message may wait, or one may be unfinished.

A job is a task and the name of its lock. While a message waits, a reservation holds its task id:

* ``unique_while="queued"``: the reservation ends when the message's run has the lock and starts.
  So one run may run, and one message may wait.
* ``unique_while="unfinished"``: as "queued", and while the lock is held a new message is a
  duplicate too. A run is recognised by its lease, which ends with its process; a reservation would
  last until it times out.

It does not apply to a message of a group, chord or chain, to one with callbacks, or to one that
replaces a task: others would wait for a result that belongs to another message. What a run sends
of itself, as its retries, is never refused: it takes over the reservation of a message that waits.
That one finds this when it is delivered, and is skipped.

A refused call relies on a run that starts after the call. So a run ends its reservation before it
reads anything, and a message that is to be skipped ends it, and tries the lock once more.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

from celery import states

from .._engine.keeper import keeper_of
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.words import logger, printable
from ..exceptions import AlreadyQueued, StoreUnavailable
from ..stores.base import Note
from ..stores.records import key_of
from .call import BESIDE, HEADER, RESERVED, Call, Send, waiting_seconds
from .message import state_of, tell
from .note import Skip
from .options import TaskOptions
from .run import Again, Run, Step, runs

# The message header with a call's own ``unique_for``: its retries reserve for the same time.
UNIQUE_FOR = "tasklock_unique_for"
# Options of a message on which other messages depend.
CANVAS = ("group_id", "chord", "chain", "link", "link_error", "replaced_task_nesting")
# A task id as Celery draws it: a random UUID.
_drawn = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{21}").fullmatch


class Unique(Step):
    """Does not send duplicates."""

    def send(self, call: Call, go: Send) -> Any:
        """Send the call unless its job is in the queue. Returns the result of the job's message.

        Raises `AlreadyQueued` with ``on_duplicate="raise"``, and `StoreUnavailable`, except with
        ``on_outage="run"``.
        """
        task, options = call.task, call.options
        on_duplicate = options.pop("on_duplicate", task.on_duplicate)
        if "unique_for" in options:
            options["headers"][UNIQUE_FOR] = float(options.pop("unique_for"))
        # A callback has a parent among its options, but a retry has one too.
        depends = any(map(options.get, CANVAS)) or (options.get("parent_id") and not call.own)
        if call.eager or call.anyway or depends:
            return go()
        # A retry has it in its headers.
        seconds = options["headers"].get(UNIQUE_FOR, task.unique_for)
        ttl = waiting_seconds(task, options) + seconds
        ttl = max(min(ttl, call.seconds_to_expiry()), 0.001)
        key, other = key_of(task.name, call.named.unique or call.name), None
        try:
            if options["headers"][HEADER].get(BESIDE):
                task.locks.store.set_note(Note(f"beside {call.id}", "reserved", ttl))
            other = _reserve(call, key, ttl)
        except StoreUnavailable:
            if not (call.own or task.on_outage == "run"):
                if call.draws_id:  # It may be reserved, and nothing is sent with this id.
                    keeper_of(task.locks.store).unreserve_later(key, call.id, ttl)
                raise
        if other is not None and not call.own:
            return _duplicate(call, other, on_duplicate)
        if other is None:  # Or not known.
            call.note(**{RESERVED: key})
        try:
            return go()
        except BaseException:
            try:
                task.locks.store.unreserve(key, call.id)
            except StoreUnavailable:  # One Redis may be the broker, too.
                if call.draws_id:
                    keeper_of(task.locks.store).unreserve_later(key, call.id, ttl)
            raise

    def judge(self, run: Run) -> None:
        """Have the message's reservation last for ``unique_for`` from now: it is not lost. Raise
        `Skip` if another message has it now: that one starts later.

        Never under the lock: the other would be skipped for this one's sake at the same time.
        """
        message, task = run.message, run.task
        key = message.ours.get(RESERVED)
        # What a redelivery has reserved ended with its first start.
        if key not in list(message.reserved) or message.attempts.again:
            return
        ttl = (message.request.headers or {}).get(UNIQUE_FOR, task.unique_for)
        other = task.locks.store.reserve(key, message.id, ttl)
        # If it is the follow-up, the other may just be leaving the job to this one.
        if other is not None and not message.end_reserved():
            raise Skip("coalesced", Owner(task=str(task.name), task_id=str(other)))

    def refused(self, run: Run, holder: LockInfo) -> None:
        """End the reservation of a message that is not to run, and try the lock once more."""
        if run.message.reserved and not run.conflict.waits:
            run.message.end_reserved()
            raise Again


def _reserve(call: Call, key: str, ttl: float) -> str | LockInfo | None:
    """Reserve for ``ttl`` seconds. Returns what is in the way, or None."""
    task, over = call.task, ""
    reserve = partial(task.locks.store.reserve, key, call.id, ttl)
    held = call.name if task.unique_while == "unfinished" and not call.own else None
    # A message that waits would leave its job to a retry that expires, and nobody would run.
    takes_over = call.own and call.seconds_to_expiry() == math.inf
    other = reserve(unless_held=held)
    while isinstance(other, str) and (takes_over or has_ended(task, other)):
        over = other
        other = reserve(over=over, unless_held=held)
    if isinstance(other, LockInfo) and not is_same_job(task, other):
        other = reserve(over=over)
    return other


def has_ended(task: TaskOptions, task_id: str) -> bool | None:
    """Return whether the result backend says that a message has ended; None if it does not answer.

    An id that Celery did not draw may be used again: what is stored may be of an earlier message;
    or of the run that has sent a retry, and went on. Raises `StoreUnavailable`.
    """
    state = state_of(task, task_id) if _drawn(task_id) else None
    if state not in states.READY_STATES:
        return None if state == "SILENT" else False
    return task.locks.store.get_note(f"beside {task_id}") is None


def is_same_job(task: TaskOptions, holder: LockInfo) -> bool:
    """Return whether the holder is a run of this task that has a message and will end. One that
    cools has ended: no run would come after the call."""
    owner = holder.owner
    if holder.cooling or owner.task != task.name or not owner.runs:
        return False
    return bool(task.acks_late) or owner.alive() is not False


def _duplicate(call: Call, other: str | LockInfo, on_duplicate: str) -> Any:
    task, name = call.task, call.name
    holder, task_id = (other, other.owner.task_id) if isinstance(other, LockInfo) else (None, other)
    tell(call, "duplicate", "running" if holder else "queued", task_id)
    if on_duplicate == "raise":
        raise AlreadyQueued(name, holder, task_id)
    if task_id in [each.message.id for each in runs.get()]:
        logger.warning(
            "a call of %s by its own run %s was not sent, and nothing goes on with it, lock %s. "
            'Use unique_while="queued" with on_conflict="retry" or "coalesce"',
            task.name, printable(task_id), name,
        )  # fmt: skip
    else:
        logger.info(
            "a call of %s was not sent: %s %s already, lock %s",
            task.name, printable(task_id), "runs" if holder else "waits", name,
        )  # fmt: skip
    return task.AsyncResult(task_id or "")
