"""
Renewal: one daemon thread a process, a heap of due times, one store call for many leases.

A lease is due after a third of its ttl, so that two calls may fail before it is over; after
a failure it is due again after a tenth. The thread starts with the first lease that asks for
it, and never touches the ORM. A forked child has no leases, and no thread until it needs one.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple
from weakref import ref

from django.db import connections

from . import clock
from .exceptions import StoreUnavailable
from .lease import HELD, Lease
from .native import new_lock, start_thread
from .stores.base import BaseStore, Extension

__all__ = ["Renewal", "renewal"]

FRACTION = 3
"""a lease is due after this part of its ttl"""
AFTER_FAILURE = 10
"""and after this part when the store did not answer"""
TOGETHER = 0.25
"""the share of its wait by which a lease may go earlier, to go with others"""
TIDY = 1024
"""entries of leases that are over, at least, before the heap is rebuilt without them"""


class Abandoned(NamedTuple):
    """A lease that may have been granted to a call that never heard of it."""

    name: str
    token: str
    until: float


class Entry(NamedTuple):
    due: float
    order: int
    delay: float
    what: ref[Lease] | Abandoned
    store: BaseStore


class Renewal:
    """Extends leases until they are released, lost, or no longer referred to."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._heap: list[Entry] = []
        self._order = itertools.count()
        self._lock = new_lock()
        self._bell = new_lock()
        self._bell.acquire()
        self._over = 0
        self._running = False

    def add(self, lease: Lease, store: BaseStore) -> None:
        """Extend ``lease`` from now on. It leaves by itself when it is over."""
        self._push(ref(lease), store, lease.remaining / FRACTION)

    def discard(self) -> None:
        """A lease that was added is over. Its entry goes when its time comes, or with many."""
        self._over += 1
        if self._over > TIDY:
            with self._lock:
                self._over = 0
                self._heap = [entry for entry in self._heap if _live(entry.what)]
                heapq.heapify(self._heap)

    def abandon(self, name: str, token: str, ttl: float, store: BaseStore) -> None:
        """Release a lease that the store may have granted, though its reply never came."""
        try:
            self._push(Abandoned(name, token, clock.now() + ttl), store, 0.0)
        except RuntimeError:
            pass  # No thread is to be had: it ends by itself.

    def start(self) -> None:
        """Start the thread, unless it runs. Raises `RuntimeError` if none is to be had."""
        if self._running:
            return
        with self._lock:
            start, self._running = not self._running, True
        if start:
            try:
                start_thread(self._run)
            except BaseException:
                self._running = False
                raise

    def _push(self, what: ref[Lease] | Abandoned, store: BaseStore, delay: float) -> None:
        entry = Entry(clock.now() + delay, next(self._order), delay, what, store)
        with self._lock:
            heapq.heappush(self._heap, entry)
            first = self._heap[0] is entry
        if not self._running:
            self.start()
        elif first:
            self._ring()

    def _ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # It is ringing already.

    def _run(self) -> None:
        while True:
            try:
                self._bell.acquire(timeout=self._work())
            except BaseException:
                # Nothing in here may end the thread: every other lease depends on it.
                self._bell.acquire(timeout=0.1)

    def _work(self) -> float:
        """Do what is due; return the seconds until there is more."""
        by_store: defaultdict[BaseStore, list[Lease]] = defaultdict(list)
        now = clock.now()
        abandoned: list[Entry] = []
        with self._lock:
            horizon = now
            while self._heap and self._heap[0].due <= horizon:
                entry = heapq.heappop(self._heap)
                horizon = max(horizon, now + entry.delay * TOGETHER)
                if isinstance(entry.what, Abandoned):
                    abandoned.append(entry)
                elif (lease := entry.what()) is not None:
                    by_store[entry.store].append(lease)
        for store, leases in by_store.items():
            self._extend(store, [lease for lease in leases if _wanted(lease)])
        for entry in abandoned:
            self._give_up(entry)
        with suppress(Exception):
            # This thread is no request, at whose end Django would close what a store, or a
            # receiver of a signal, has opened.
            connections.close_all()
        with self._lock:
            if not self._heap:
                return 3600.0
            return max(0.0, self._heap[0].due - clock.now())

    def _extend(self, store: BaseStore, leases: list[Lease]) -> None:
        if not leases:
            return
        started = clock.now()
        batch = [Extension(x.name, x.token, x.ttl, x._proof) for x in leases]
        said: list[bool | None]
        try:
            said = list(store.extend_many(batch))
        except BaseException:
            said = []
        if len(said) != len(batch):
            # An outage, or a store's mistake: asked again until the leases are over.
            said = [None] * len(batch)
        for lease, extension, held in zip(leases, batch, said, strict=True):
            lease._extended(started + extension.ttl, held)
            if held is None:
                self._push(ref(lease), store, extension.ttl / AFTER_FAILURE)
            elif held:
                self._push(ref(lease), store, extension.ttl / FRACTION)
            else:
                _lost(lease)

    def _give_up(self, entry: Entry) -> None:
        assert isinstance(entry.what, Abandoned)
        try:
            entry.store.abandon(entry.what.name, entry.what.token)
        except StoreUnavailable:
            if clock.now() < entry.what.until:
                self._push(entry.what, entry.store, min(2.0, entry.delay * 2 + 0.05))


def _wanted(lease: Lease) -> bool:
    try:
        return lease.renew and lease._extending()
    except BaseException:
        return False  # It is over, and a receiver of the signal meant to end its thread.


def _lost(lease: Lease) -> None:
    try:
        lease._keeper.lost(lease, "the store no longer has it")
    except BaseException:
        pass  # As above: the other leases go on.


def _live(what: ref[Lease] | Abandoned) -> bool:
    if isinstance(what, Abandoned):
        return True
    lease = what()
    return lease is not None and lease._state == HELD


renewal = Renewal()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewal._start)
