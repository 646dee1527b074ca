"""The history of locks: what happened is queued in the process, and written in batches.

Nothing is written for a lock that is taken and released without anybody in the way. For everything
else the caller only appends to a queue: a thread writes what has come together in a second, so that
thousands of refusals are one round trip. Events are for people who look later: those that cannot be
written are dropped, and nobody is told but the log.
"""

from __future__ import annotations

import atexit
import builtins
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from .._compat.native_threads import are_patched
from .._values import clock
from .._values.arguments import checked_name, checked_number
from .._values.event import Event, Kind
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.owner_record import recorded
from ..exceptions import ListingNotSupported, StoreUnavailable
from ..stores import stores
from ..stores.base import BaseStore
from .aio.lanes import LAST_CALLS_SECONDS, lanes_of
from .noted import Gathered, Noted

__all__ = [
    "LONG_WAIT_SECONDS",
    "Remembering",
    "forget",
    "note_event",
    "write_events",
    "write_last_events",
    "write_noted",
]

logger = logging.getLogger("django_tasklock")

LONG_WAIT_SECONDS = 1.0
"""who waited longer, and got the lock, is an event"""
BATCH_SECONDS = 1.0
"""how long events come together before they are written"""
GATHER_SECONDS = 0.1
"""how often the writer makes one of events that say the same"""
LOOK_SECONDS = 0.01
"""how often a process that ends looks whether all is written"""
LOST_WRITER_SECONDS = 5.0
"""a writer that has not begun to write by then was interrupted before it was asked for"""
MOST_QUEUED = 2000
"""events of one store that are noted between two gatherings, or while the writer writes"""
DROPPED_LOG_SECONDS = 60.0


class _Queue:
    """The events of one store that are not written yet."""

    def __init__(self) -> None:
        self.events: deque[Noted] = deque()
        self.due = 0.0
        """until then, on `clock.now`, a writer is expected to take the events"""
        self.dropped = 0
        self.told = -DROPPED_LOG_SECONDS
        """when the log was told, on `clock.now`"""
        self.gathered = Gathered()
        self.gathering = threading.RLock()
        """held for moments by who writes, and never by who notes an event. It can be entered again:
        a signal's handler may read the history"""

    def gather(self) -> None:
        """Make one of events that say the same. Raises nothing."""
        with self.gathering, suppress(IndexError):
            for _ in range(MOST_QUEUED):
                if not self.gathered.add(self.events.popleft()):
                    self.dropped += 1


_queues: dict[str, _Queue] = {}
"""by the store's alias"""
_ending = threading.Event()
"""set when the process ends: there is no time to wait for more"""


def note_event(
    alias: str,
    kind: Kind,
    name: str,
    owner: Mapping[str, Any] | Owner,
    *,
    holder: LockInfo | Owner | None = None,
    seconds: float | None = None,
    by: str | None = None,
    reason: str | None = None,
    soon: bool = True,
) -> None:
    """Have an event written, if the store keeps a history. Asks no server, waits for nothing.

    ``owner`` is the owner, or its record. ``soon``: False for a caller that cannot wait until a
    thread is started; it calls `write_noted` later. The other arguments are the fields of `Event`.
    """
    store = stores.made(alias)
    if store is None or not store.keeps_history:
        return
    queue = _queues.get(alias) or _queues.setdefault(alias, _Queue())
    if len(queue.events) >= MOST_QUEUED:
        queue.dropped += 1
    else:
        queue.events.append(
            Noted(store, kind, name, time.time(), owner, holder, seconds, by, reason)
        )
    # Under gevent a loss may be noted by the renewal's thread, in which no greenlet can be started;
    # it is written with the next event.
    if soon and clock.now() >= queue.due and not (kind == "lost" and are_patched()):
        _ask_for_writer(alias, queue)


def write_noted(alias: str) -> None:
    """Have the events written that were noted with ``soon=False``. Waits for nothing."""
    queue = _queues.get(alias)
    if queue is not None and queue.events and clock.now() >= queue.due:
        _ask_for_writer(alias, queue)


def write_events(alias: str) -> None:
    """Write the events that are not written yet, by the calling thread. Raises nothing.

    For who makes hundreds of events in a moment, of which the queue would drop some.
    """
    queue = _queues.get(alias)
    if queue is not None and (queue.events or queue.gathered):
        _write_quietly(alias, queue)


def forget() -> None:
    """Drop what is not written yet."""
    for queue in list(_queues.values()):
        queue.events.clear()
        with queue.gathering:
            queue.gathered.take()
    _queues.clear()


def write_last_events() -> None:
    """Have what is not written yet written, and wait for that, though not for long.

    For a process that ends without the handlers of `atexit`. Raises nothing.
    """
    _end()
    deadline = clock.now() + LAST_CALLS_SECONDS
    for alias in list(_queues):
        while not lanes_of(alias).noting.is_done() and clock.now() < deadline:
            time.sleep(LOOK_SECONDS)


def _ask_for_writer(alias: str, queue: _Queue) -> None:
    # A moment instead of a flag: an exception may be raised between the two lines.
    queue.due = clock.now() + LOST_WRITER_SECONDS
    with suppress(RuntimeError):  # The system starts no thread now.
        lanes_of(alias).noting.submit(partial(_write_soon, alias, queue))


def _write_soon(alias: str, queue: _Queue) -> None:
    """Wait for more events, and write them. Raises nothing."""
    until = clock.now() + BATCH_SECONDS
    while (queue.events or queue.gathered) and clock.now() < until:
        if _ending.wait(GATHER_SECONDS):
            break
        queue.gather()
    _write_quietly(alias, queue)


def _write_quietly(alias: str, queue: _Queue) -> None:
    try:
        _write(alias, queue)
    except StoreUnavailable as error:
        logger.debug("the history of the lock store %s was not written: %s", alias, error)
    except Exception:  # A store's mistake.
        logger.debug("the history of the lock store %s was not written", alias, exc_info=True)


def _write(alias: str, queue: _Queue) -> None:
    """Write the events. Raises `StoreUnavailable`; they are dropped then."""
    queue.due = 0.0  # Before the look: of an event that comes later another writer is told.
    with queue.gathering:
        queue.gather()
        batches = queue.gathered.take()
    if queue.dropped and clock.now() >= queue.told + DROPPED_LOG_SECONDS:
        dropped, queue.dropped, queue.told = queue.dropped, 0, clock.now()
        logger.info(
            "%s events of the lock store %s were dropped: they came faster than they are written",
            dropped, alias,
        )  # fmt: skip
    for store, events in batches:
        store.record(events)


class Remembering:
    """The part of `LockService` that shows the history."""

    @property
    def store(self) -> BaseStore:
        """The store of the locks."""
        raise NotImplementedError

    def history(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        """Return what happened to the locks, the newest first: refusals, skipped tasks, long waits,
        losses, and what operators did. A lock that was taken and released with nobody in the way is
        not there.

        ``name``: only of this lock and of its permits (``slots=N``); None: of all locks of the
        store. ``task_id``: only what happened to the task with this id: that it was skipped or
        refused, by whom and why, or has lost its lock. Not what others met because it held a lock.
        ``limit``: how many at most. The store keeps the newest ones, of all locks together. What
        happened in other processes may be there two seconds later.

        Refusals of one lock by the same lease, of one process and the same task id, are one event
        for each second: its ``count`` says how many.

        Raises `ListingNotSupported` on a store that keeps no history, and `TypeError` or
        `ValueError` for a wrong argument.
        """
        if name is not None:
            checked_name(name)
        if task_id is not None:
            if not isinstance(task_id, str):
                raise TypeError(f"a task id is a str, not {type(task_id).__name__}: {task_id!r}")
            if not task_id:
                raise ValueError("a task id is not empty")
            task_id = recorded(task_id)
        checked_number("limit", limit)
        store = self.store
        if not store.supports_history:
            raise ListingNotSupported(store.alias, "keep a history of its locks")
        queue = _queues.get(store.alias)
        if queue is not None:
            _write(store.alias, queue)
        return store.events(name, task_id, limit)


def _end() -> None:
    """The lanes wait at exit for what they were asked for, though not for long."""
    _ending.set()
    for alias, queue in list(_queues.items()):
        if queue.events or queue.gathered:
            _ask_for_writer(alias, queue)


# Called before that of lanes.py, which was registered before it.
atexit.register(_end)


def _forget_parent() -> None:
    """What is queued is the parent's to write, and its threads may hold what is locked."""
    global _ending
    _queues.clear()
    _ending = threading.Event()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
