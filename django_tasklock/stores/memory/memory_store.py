"""Leases in the memory of one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any
from weakref import WeakSet

from ..._compat.native_threads import new_rlock
from ..._values import clock
from ..._values.lock_info import LockInfo
from ..._values.owner import Owner
from ...conf import StoreSettings
from ..base import Finding, Grant, Note, Refusal
from ..record import may_rewrite
from .ending import Ending, Expiring, today
from .held import Held, next_fence
from .memory_notes import MemoryNotes
from .memory_trail import MemoryTrail
from .memory_waiter import MemoryWaiter, WaitQueues

__all__ = ["MemoryStore"]

logger = logging.getLogger("django_tasklock")

_all: WeakSet[MemoryStore] = WeakSet()


class MemoryStore(MemoryTrail):
    """Leases in the memory of this process, for the tests of a project: no cache, no server.

    It excludes the threads of one process. A forked child has a copy of the leases that were held
    when it was forked; from then on neither knows of the other's.

    It follows the time that freezegun and time-machine set: a test that moves the time past the end
    of a lease finds the lock not held and the lease lost. A lease ends after its ttl in real time
    too, also while the time stands still.

    Its fences are microseconds since the epoch, or more, and grow in all stores of a process.
    """

    supports_listing = True
    atomic_release = True
    supports_fence = True
    supports_waiting = True
    supports_rewrite = True

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._leases: Expiring[Held] = Expiring()
        self.queues = WaitQueues()
        self._is_copy = False
        """whether the leases are a copy of those of the process that forked this one"""
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
                store._leases.clear()
                store._notes.clear()
                store._events.clear()
                store.queues.forget()

    def key(self, name: str) -> str:
        """The key of a lock, as a cache would have it."""
        prefix = self.settings.key_prefix
        return f"{prefix}:{name}" if prefix else name

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        return self.ask(name, token, ttl, owner)

    def acquire_with_note(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], note: Note
    ) -> Grant | Refusal:
        return self.ask(name, token, ttl, owner, note)

    def ask(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
        waiter: MemoryWaiter | None = None,
    ) -> Grant | Refusal:
        """`acquire`, with a note to write if the lock is granted, for a waiter that otherwise joins
        the wait queue or keeps its position there."""
        with self.guard:
            if self._is_copy:
                self._warn_of_copy()
            held = self._holder(name)
            if held is None:
                held = self._hold(name, token, ttl, owner)
            elif held.token == token:
                held.ending = Ending.after(ttl)
            else:
                if waiter is not None:
                    self.queues.join(waiter)
                return Refusal(self._info(name, held))
            if waiter is not None:
                self.queues.leave(waiter)
            noted = note is not None and self.get_note(note.key) in (None, note.text)
            if note is not None and noted:
                self.set_note(note)
            return Grant(held.fence, noted=noted, left=held.left)

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        with self.guard:
            held = self._holder(name)
            if held is None or held.token != token:
                return False
            held.ending = Ending.after(ttl)
            return True

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        with self.guard:
            held = self._holder(name)
            if held is None or held.token != token:
                return None
            before = Owner.from_record(held.owner)
            if held.owner != owner and not may_rewrite(before, owner, mark):
                return None
            held.owner, held.ending = dict(owner), Ending.after(ttl)
            return Grant(held.fence, left=held.left)

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        return self.clear(name, token)

    def release_with_note(self, name: str, token: str, proof: Any, note: Note) -> bool:
        with self.guard:
            if not self.clear(name, token):
                return False
            self.set_note(note)
            return True

    def clear(self, name: str, token: str | None = None) -> bool:
        with self.guard:
            held = self._holder(name)
            if held is None or token not in (None, held.token):
                return False
            self._leases.remove(name)
            self._hand_over(name)
            return True

    def get(self, name: str) -> LockInfo | None:
        with self.guard:
            held = self._holder(name)
            return None if held is None else self._info(name, held)

    def waiter(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> MemoryWaiter | None:
        return MemoryWaiter(self, name, token, ttl, owner)

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        with self.guard:
            return [waiter.as_owner() for waiter in self.queues.waiting(name)[:limit]]

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        found = sorted(self.scan(prefix), key=lambda info: info.ttl or 0.0)
        return found[offset:][:limit]

    def count(self, prefix: str = "") -> int:
        return len(self.list(prefix))

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        with self.guard:
            names = [name for name in self._leases if name.startswith(prefix)]
            found = [self.get(name) for name in names]
        return (info for info in found if info is not None)

    def check(self) -> Iterable[Finding]:
        yield Finding(
            "memory",
            True,
            "it keeps its locks in memory: they exclude within one process only",
            "It is for tests. Use a store that all processes share, such as one on Redis.",
        )

    def _holder(self, name: str) -> Held | None:
        """The lease that holds the lock: that of the first waiter, if the last one is over."""
        return self._leases.get(name) or self._hand_over(name)

    def _hand_over(self, name: str) -> Held | None:
        """Give the lock, which nothing holds, to the first waiter in the queue."""
        waiter = self.queues.first(name)
        if waiter is None:
            return None
        # After an interruption it is still in the queue, or finds itself the holder when it looks.
        held = self._hold(name, waiter.token, waiter.ttl, waiter.owner)
        self.queues.leave(waiter)
        waiter.tell(Grant(held.fence, started=clock.now(), left=held.left))
        return held

    def _hold(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> Held:
        held = Held(token, dict(owner), next_fence(), today(), Ending.after(ttl))
        self._leases.put(name, held)
        return held

    def _info(self, name: str, held: Held) -> LockInfo:
        began = datetime.fromtimestamp(held.began, tz=timezone.utc)
        waiting = self.queues.waiting(name)
        since = waiting[0].as_owner().waiting_since if waiting else None
        return LockInfo(
            name, max(0.0, held.left()), began, held.token, held.as_owner(),
            self.alias, self.key(name), held.fence, len(waiting),
            held.owner.get("ttl"), held.owner.get("renew"), waiting_since=since,
        )  # fmt: skip

    def new_process(self) -> None:
        """In a forked child: the waiters are threads of the parent."""
        self.queues = WaitQueues()
        self._is_copy = bool(self._leases)

    def _warn_of_copy(self) -> None:
        self._is_copy = False
        logger.warning(
            "the lock store %s is in memory, and this forked process has a copy of its locks: it "
            "and its parent do not exclude each other",
            self.alias,
        )


def _new_process() -> None:
    # A thread that the child does not have may have held the guard.
    MemoryNotes.guard = new_rlock()
    for store in _all:
        store.new_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
