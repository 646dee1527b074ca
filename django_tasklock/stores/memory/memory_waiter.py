"""The wait queues of locks in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from ..._values import clock
from ..._values.lock_info import LockInfo
from ..base import Grant, Note, Owner, Refusal
from ..record import new_record, record_of, waiter_of
from .ending import today

__all__ = ["MemoryWaiter", "WaitQueues"]

LOOK_SECONDS = 0.05
"""how often a waiter looks whether the lease that it waits for is over: nobody tells it when a test
moves the time"""
OTHERS_LOOK_SECONDS = 1.0
"""the same, of those on an event loop that are not the first in the queue"""


class MemoryWaiter:
    """One caller that waits for one lock; see `Waiter`."""

    def __init__(
        self, store: Any, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> None:
        self._store = store
        self.name = name
        self.token = token
        self.ttl = ttl
        self.owner = owner
        self.since: float | None = None
        """when it first asked, on `today`"""
        self.note: Note | None = None
        self.cut = False
        """set by the store when it has forgotten its wait queues"""
        self._grant: Grant | None = None
        self._holder: LockInfo | None = None
        """the holder that `ask` or `wait` has returned last"""
        self._waker: Callable[[], None] | None = None
        # Not a threading.Event, which an exception from a signal handler may leave locked.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    @property
    def ready(self) -> bool:
        return True

    def ask(self) -> Grant | Refusal:
        with self._store.guard:
            self._grant, self.cut = None, False
            if self.since is None:
                self.since = today()
            answer: Grant | Refusal = self._store.ask(
                self.name, self.token, self.ttl, self.owner, self.note, self
            )
            if isinstance(answer, Refusal):
                self._holder = answer.holder
            return answer

    def wait(self, seconds: float) -> Grant | Refusal | None:
        deadline = clock.now() + seconds
        while True:
            with self._store.guard:
                news = self._handed_over() or self._next_holder()
            left = deadline - clock.now()
            if news is not None or left <= 0 or self.cut:
                return news
            self._wakeup.acquire(timeout=min(left, LOOK_SECONDS))

    def _handed_over(self) -> Grant | None:
        """What was handed over to this waiter. The caller holds the store's guard."""
        # This hands the lock over if the lease that held it is over.
        holder = self._store.get(self.name)
        grant, self._grant = self._grant, None
        if grant is None and holder is not None and holder.token == self.token:
            # The hand-over was interrupted before it was told.
            answer = self.ask()
            return answer if isinstance(answer, Grant) else None
        return grant

    def _next_holder(self) -> Refusal | None:
        """What holds the lock now, if that has changed. The caller holds the store's guard.

        A lease that is handed on, or cools, keeps its token.
        """
        known, holder = self._holder, self._store.get(self.name)
        if holder is None or known is None:
            return None
        if (holder.token, holder.owner) == (known.token, known.owner):
            return None
        self._holder = holder
        return Refusal(holder)

    def as_owner(self) -> Owner:
        """Who waits, and since when."""
        return waiter_of(record_of(new_record(self.token, self.owner, self.since)))

    def wake_by(self, wake: Callable[[], None]) -> float:
        """`WakingWaiter.wake_by`."""
        with self._store.guard:
            self._waker = wake
            if self._grant is not None or self.cut:
                wake()
            # The first one looks for all whether the lease is over.
            return LOOK_SECONDS if self._store.queues.is_first(self) else OTHERS_LOOK_SECONDS

    def leave(self) -> Grant | None:
        with self._store.guard:
            self._store.queues.leave(self)
            return self._handed_over()

    def quit(self) -> None:
        self.leave()

    def tell(self, grant: Grant | None) -> None:
        """Hand the lock over to this waiter; None: the queue was forgotten. For the store."""
        self._grant = grant
        self.cut = grant is None
        if self._waker is not None:
            self._waker()
        if self._wakeup.locked():
            try:
                self._wakeup.release()
            except RuntimeError:
                pass  # Its own wait has ended at this moment.


class WaitQueues:
    """The wait queues of one store, by the name of the lock.

    A waiter is in its queue for as long as its caller lives. The caller of each method holds the
    store's guard.
    """

    def __init__(self) -> None:
        self._queues: dict[str, list[ref[MemoryWaiter]]] = {}

    def join(self, waiter: MemoryWaiter) -> None:
        """Put a waiter at the end of its queue, unless it is in it already."""
        queue = self._queues.setdefault(waiter.name, [])
        if ref(waiter) not in queue:
            queue.append(ref(waiter))

    def leave(self, waiter: MemoryWaiter) -> None:
        """Remove a waiter from its queue, if it is in it."""
        self._keep(waiter.name, [one for one in self.waiting(waiter.name) if one is not waiter])

    def first(self, name: str) -> MemoryWaiter | None:
        """The next waiter of a queue."""
        return next(iter(self.waiting(name)), None)

    def is_first(self, waiter: MemoryWaiter) -> bool:
        """Whether a waiter is the next one in its queue."""
        return self.first(waiter.name) is waiter

    def waiting(self, name: str) -> list[MemoryWaiter]:
        """The waiters of a queue, the first one first."""
        queue = self._queues.get(name, ())
        return [waiter for entry in queue if (waiter := entry()) is not None]

    def forget(self) -> None:
        """Forget all queues. Their waiters are told, and ask again."""
        for name in list(self._queues):
            for waiter in self.waiting(name):
                waiter.tell(None)
        self._queues.clear()

    def _keep(self, name: str, waiters: list[MemoryWaiter]) -> None:
        if waiters:
            self._queues[name] = [ref(waiter) for waiter in waiters]
        else:
            self._queues.pop(name, None)
