"""Locks in the memory of one process, for tests: the whole contract in its plainest form."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakSet, ref

from .._compat.native_threads import NativeRLock, new_rlock
from .._values import clock
from .._values.event import Event
from .._values.lock_info import LockInfo
from .._values.owner import SINCE, Owner
from .._values.slots import LARGEST_SLOTS, base_of
from ..conf import StoreSettings
from .base import BaseStore, Finding, Grant, Note, Refusal
from .history import is_about
from .records import (
    KEEP,
    Change,
    Done,
    Entry,
    Held,
    Record,
    fits,
    is_note,
    is_there,
    left_of,
    waiter_of,
)

__all__ = ["MemoryStore"]

logger = logging.getLogger("django_tasklock")

# How many events are kept.
HISTORY_EVENTS = 10_000
# What is over is removed when there are so many records, or twice as many as after the last time.
RECORDS_BEFORE_TIDYING = 1024
# How often a waiter looks whether the lease that it waits for is over: nobody tells it when a test
# moves the time. The same, of those on an event loop that are not the first in the queue.
LOOK_SECONDS, OTHERS_LOOK_SECONDS = 0.05, 1.0

_all: WeakSet[MemoryStore] = WeakSet()
# Of all stores of this process: a test may replace its store, and keep its rows.
_last_fence = 0


def today() -> float:
    """Return seconds since the epoch, at the time that freezegun or time-machine may have set.

    Of what both of them set, this is what a project's own code reads, through
    ``django.utils.timezone.now``. freezegun gives ``time.time`` the real time in a function that
    is the target of a thread.
    """
    # Not `from datetime import datetime`: a module imported while time is frozen may keep that.
    return dt.datetime.now(dt.timezone.utc).timestamp()


@dataclass(slots=True)
class Kept:
    """A record, until a moment that comes as soon as one of two clocks says so.

    The real clock counts beside the one that a test may set, so that the store agrees with
    `Lease.held`, which goes by it, and so that a lease taken in a future that a test has left again
    does not last until that future.
    """

    record: Record
    fence: int | None
    began: float
    ends: tuple[float, float]
    """on `today`, on `clock.now`"""

    def set_ttl(self, seconds: float | None) -> None:
        """Have it end so many seconds from now; None: never."""
        seconds = float("inf") if seconds is None else seconds
        self.ends = today() + seconds, clock.now() + seconds

    def left(self) -> float:
        """Seconds until then; at most 0 once it is over."""
        return min(self.ends[0] - today(), self.ends[1] - clock.now())


class MemoryStore(BaseStore):
    """Locks in the memory of this process, for the tests of a project: no cache, no server.

    It excludes the threads of one process. A forked child has a copy of the leases that were held
    when it was forked; from then on neither knows of the other's.

    It follows the time that freezegun and time-machine set: a test that moves the time past the end
    of a lease finds the lock not held and the lease lost. A lease ends after its ttl in real time
    too, also while the time stands still.

    Its fences are microseconds since the epoch, or more, and grow in all stores of a process.
    """

    fences_are_times = True
    supports_waiting = True
    supports_history = True

    # Reentrant: a signal handler may run inside of a call and take a lock too. Native: the renewal
    # thread and greenlets share it, and no greenlet is switched to while it is held.
    guard: ClassVar[NativeRLock] = new_rlock()
    """held while anything of a memory store is read or changed, and never longer"""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._kept: dict[str, Kept] = {}
        self._tidied = 0
        self._events: deque[Event] = deque(maxlen=HISTORY_EVENTS)
        # The waiters of each lock, or of all permits of a name, the next one first. One whose
        # caller is gone is not in the queue any more.
        self._queues: dict[str, list[ref[MemoryWaiter]]] = {}
        # Whether there are copies of the leases of the process that forked this one.
        self._is_copy = False
        with self.guard:
            _all.add(self)

    @classmethod
    def clear_all(cls) -> None:
        """Forget all locks, waiters, notes, reservations and events of all memory stores of this
        process.

        For the end of a test, so that the next one finds no lock that this one has left behind.
        Whoever holds a lease loses it; no signal is sent before it notices.
        """
        with cls.guard:
            for store in _all:
                store._kept.clear()
                store._events.clear()
                waiting = [waiter for name in [*store._queues] for waiter in store.waiting(name)]
                store._queues.clear()
                for waiter in waiting:
                    waiter.tell(None)

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        with self.guard:
            if self._is_copy:
                self._warn_of_copy()
            there = [self._entry(change.name) for change in changes]
            made = all(map(fits, changes, there))
            if made:
                for change, entry in zip(changes, there, strict=True):
                    self._make(change, is_there(change, entry), least_fence)
            return Done(made, [self._entry(change.name) for change in changes])

    def get(self, names: Sequence[str]) -> list[Entry | None]:
        with self.guard:
            return [self._entry(name) for name in names]

    def waiter(
        self,
        names: Sequence[str],
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
    ) -> MemoryWaiter:
        return MemoryWaiter(self, names, token, ttl, owner, note)

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        with self.guard:
            return [waiter_of(waiter.record) for waiter in self.waiting(name)[:limit]]

    def record(self, events: Sequence[Event]) -> None:
        with self.guard:
            self._events.extend(events)

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> list[Event]:
        with self.guard:
            found = [event for event in reversed(self._events) if is_about(event, name, task_id)]
        return found[:limit]

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        return iter(())

    def check(self) -> Iterable[Finding]:
        yield Finding(
            "memory",
            True,
            "it keeps its locks in memory: they exclude within one process only",
            "It is for tests. Use a store that all processes share, such as one on Redis.",
        )

    def granted(self, entry: Entry, *, noted: bool = False) -> Grant:
        kept = self._kept.get(entry.name)
        own = kept is not None and kept.fence == entry.fence
        return Grant(
            entry.name, entry.fence, noted, kept.left if kept is not None and own else _over
        )

    def join_queue(self, waiter: MemoryWaiter) -> int:
        """Put a waiter at the end of its queue, unless it is in it. Returns how many are before it.
        The caller holds the guard."""
        queue = self._queues.setdefault(waiter.queue, [])
        if ref(waiter) not in queue:
            queue.append(ref(waiter))
        return queue.index(ref(waiter))

    def leave_queue(self, waiter: MemoryWaiter) -> None:
        """Remove a waiter from its queue, if it is in it. The caller holds the guard."""
        if waiter.queue in self._queues and ref(waiter) in self._queues[waiter.queue]:
            self._queues[waiter.queue].remove(ref(waiter))
            self.waiting(waiter.queue)  # An empty queue goes.

    def waiting(self, name: str) -> list[MemoryWaiter]:
        """The waiters of a queue, the next one first. The caller holds the guard."""
        queue = [entry for entry in self._queues.get(name, ()) if entry() is not None]
        if queue:
            self._queues[name] = queue
        else:
            self._queues.pop(name, None)
        return [waiter for entry in queue if (waiter := entry()) is not None]

    def _make(self, change: Change, is_made: bool, least_fence: int) -> None:
        global _last_fence
        name, kept, record = change.name, self._there(change.name), change.record
        if record is None:
            if self._kept.pop(name, None) is not None:
                self._hand_over(name)
        elif isinstance(record, Mapping):
            if kept is None or not (is_made or isinstance(change.expect, Held)):
                self._keep(name, record, change.ttl, least_fence)
                return
            if not is_made:
                kept.record = record
                for waiter in self._waiting_for(name):
                    waiter.hear_of(name)
            if kept.fence is not None and kept.fence < least_fence:
                kept.fence, _last_fence = least_fence, max(_last_fence, least_fence)
            kept.set_ttl(change.ttl)
        elif record == KEEP and kept is not None and change.ttl is not None:
            kept.set_ttl(change.ttl)

    def _keep(self, name: str, record: Record, ttl: float | None, least_fence: int = 0) -> Kept:
        global _last_fence
        if len(self._kept) >= max(RECORDS_BEFORE_TIDYING, 2 * self._tidied):
            self._kept = {old: each for old, each in self._kept.items() if each.left() > 0}
            self._tidied = len(self._kept)
        now, fence = today(), None
        if not is_note(name):
            fence = _last_fence = max(_last_fence + 1, int(now * 1_000_000), least_fence)
        kept = self._kept[name] = Kept(record, fence, now, (0.0, 0.0))
        kept.set_ttl(ttl)
        return kept

    def _there(self, name: str) -> Kept | None:
        """What is under the name: the lease of the first waiter, if the last one is over."""
        kept = self._kept.get(name)
        if kept is None or kept.left() <= 0:
            self._kept.pop(name, None)
            kept = self._hand_over(name)
        return kept

    def _hand_over(self, name: str) -> Kept | None:
        """Give the lock, which nothing holds now, to the first waiter that may have it."""
        waiting = self._waiting_for(name)
        if not waiting:
            return None
        # After an interruption it is still in the queue, or finds itself the holder when it looks.
        first = waiting[0]
        kept = self._keep(name, first.record, first.ttl)
        self.leave_queue(first)
        first.tell(Grant(name, kept.fence, left=kept.left))
        for waiter in waiting[1:]:
            waiter.hear_of(name)
        return kept

    def handed_to(self, waiter: MemoryWaiter) -> Grant | None:
        """What a waiter was handed, though an interruption may have kept it from being told.

        The caller holds the guard. Hands the lock over if the lease that held it is over.
        """
        for name in waiter.names:
            kept = self._there(name)
            if kept is not None and kept.record is waiter.record:
                return Grant(name, kept.fence, left=kept.left)
        return None

    def _waiting_for(self, name: str) -> Sequence[MemoryWaiter]:
        """Who may have the lock ``name``: those who wait for a permit, and for this very lock."""
        if not self._queues:
            return ()
        queues = dict.fromkeys([base_of(name, LARGEST_SLOTS), name])
        return [each for queue in queues for each in self.waiting(queue) if name in each.names]

    def _entry(self, name: str) -> Entry | None:
        kept = self._there(name)
        if kept is None:
            return None
        waiting = self._waiting_for(name)
        return Entry(
            name, kept.record, max(0.0, kept.left()), kept.fence, None, kept.began, len(waiting),
            waiting[0].record[SINCE] if waiting else None,
        )  # fmt: skip

    def new_process(self) -> None:
        """In a forked child: the waiters are threads of the parent."""
        self._queues = {}
        self._is_copy = any(not is_note(name) for name in self._kept)

    def _warn_of_copy(self) -> None:
        self._is_copy = False
        logger.warning(
            "the lock store %s is in memory, and this forked process has a copy of its locks: it "
            "and its parent do not exclude each other",
            self.alias,
        )

    def list(self, prefix: str = "") -> Iterator[Entry]:
        with self.guard:
            names = [name for name in self._kept if name.startswith(prefix)]
            found = [self._entry(name) for name in names if is_note(name) == is_note(prefix)]
        ends = sorted((entry for entry in found if entry is not None), key=left_of)
        return iter(ends)


class MemoryWaiter:
    """See `Waiter`."""

    ready = True

    def __init__(
        self,
        store: MemoryStore,
        names: Sequence[str],
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None,
    ) -> None:
        self.names, self.ttl = names, ttl
        self.queue = base_of(names[0], owner["slots"]) if "slots" in owner else names[0]
        self.record: dict[str, Any] = {**owner, "token": token, "at": today(), SINCE: today()}
        self.cut, self.ahead = False, 0
        self._store, self._owner, self._note = store, owner, note
        self._news: Grant | Refusal | None = None
        self._waker: Callable[[], None] | None = None
        # Not a threading.Event, which an exception from a signal handler may leave locked.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def ask(self) -> Grant | Refusal:
        store, token = self._store, self.record["token"]
        with store.guard:
            self._news, self.cut = None, False
            answer = store.acquire(self.names, token, self.ttl, self._owner, self._note)
            self.ahead = 0
            if isinstance(answer, Grant):
                store.leave_queue(self)
            else:
                self.ahead = store.join_queue(self)
            return answer

    def wait(self, seconds: float) -> Grant | Refusal | None:
        deadline = clock.now() + seconds
        while True:
            with self._store.guard:
                news = self._store.handed_to(self) or self._news
                self._news = None
            left = deadline - clock.now()
            if news is not None or left <= 0 or self.cut:
                return news
            self._wakeup.acquire(timeout=min(left, LOOK_SECONDS))

    def wake_by(self, wake: Callable[[], None]) -> float:
        with self._store.guard:
            self._waker = wake
            if self._news is not None or self.cut:
                wake()
            # The first one looks for all whether a lease is over.
            first = self._store.waiting(self.queue)[:1] == [self]
            return LOOK_SECONDS if first else OTHERS_LOOK_SECONDS

    def leave(self) -> Grant | None:
        with self._store.guard:
            self._store.leave_queue(self)
            return self._store.handed_to(self)

    def quit(self) -> None:
        self.leave()

    def tell(self, news: Grant | Refusal | None) -> None:
        """Hand the lock over to this waiter, or say who has it now; None: the queue was forgotten.
        For the store."""
        self._news, self.cut = news, news is None
        if self._waker is not None:
            self._waker()
        if self._wakeup.locked():
            try:
                self._wakeup.release()
            except RuntimeError:
                pass  # Its own wait has ended at this moment.

    def hear_of(self, name: str) -> None:
        """Say that another waiter has the lock ``name`` now. For the store."""
        holder = self._store.find(name)
        if name in self.names and holder is not None and not isinstance(self._news, Grant):
            self.tell(Refusal((holder,)))


def _over() -> float:
    return 0.0


def _new_process() -> None:
    # A thread that the child does not have may have held the guard.
    MemoryStore.guard = new_rlock()
    for store in _all:
        store.new_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
