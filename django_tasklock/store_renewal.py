"""The renewal of one store: a thread, a heap of due times, one store call for many leases.

No lock is held while an entry is added, from whatever thread: the garbage collector and signal
handlers add some, in the middle of anything.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from weakref import ref

from django.db import connections

from . import clock
from .exceptions import StoreUnavailable
from .lease import HELD, Lease
from .native import NativeLock, new_lock, start_thread
from .stores.base import BaseStore, Extension

__all__ = ["FRACTION", "Abandoned", "Entry", "StoreRenewal"]

FRACTION = 3
"""a lease is due after this part of what is left of it"""
AFTER_FAILURE = 10
"""and after this part of its ttl when the store did not answer"""
AT_LEAST = 0.005
"""seconds between questions to a store that does not answer, towards the end of a lease"""
TOGETHER = 0.25
"""the share of its wait by which a lease may go earlier, to go with others"""
BATCH = 500
"""leases of one call: where it fails, the others have their own"""
TIDY = 1024
"""entries, at least, before the heap is rebuilt without those of leases that are over"""
FIRST_LOOK = 0.25
LAST_LOOK = 4.0
"""seconds until it is looked again, at first and at last, whether a lease was granted after all:
the command of a call that was interrupted may be on its way still, and overtaken by ours"""
LONGEST_SLEEP = 3600.0


class Entry(NamedTuple):
    """A lease that is to be extended when it is due."""

    due: float
    order: int
    delay: float
    lease: ref[Lease]


class Abandoned(NamedTuple):
    """A lease that is to be released: its release was interrupted, or it may have been granted to
    a call that never heard of it (then ``lease`` is None)."""

    due: float
    order: int
    delay: float
    name: str
    token: str
    until: float
    lease: Lease | None


class StoreRenewal:
    """The renewal of one store's leases."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self.begin()

    def begin(self) -> None:
        """Forget everything: in a new process it is the parent's."""
        self._heap: list[Entry] = []
        self._abandoned: list[Abandoned] = []
        """a heap too; both are the thread's own"""
        self._arrivals: deque[Entry | Abandoned] = deque()
        """what others have added since it looked"""
        self._order = itertools.count()
        self._bell = new_lock()
        self._bell.acquire()
        self._running = new_lock()
        """held by the thread, as long as it lives"""
        self._asleep_until = -math.inf
        self._tidied = 0

    def start(self) -> None:
        """Start the thread, unless it runs. Raises `RuntimeError` if none is to be had."""
        if not self._running.locked():
            # Of two that were started at the same time one ends at once.
            bell = self._bell
            start_thread(partial(_run, ref(self, lambda _: _ring(bell)), self._running, bell))

    def schedule(self, lease: Lease, delay: float) -> None:
        """Extend ``lease`` in so many seconds, unless that is to be done sooner anyway."""
        due = clock.now() + delay
        if due < lease._due:
            self._push(Entry(due, next(self._order), delay, ref(lease)))

    def abandon(
        self, name: str, token: str, until: float, lease: Lease | None, delay: float = 0.0
    ) -> None:
        """Release a lease in so many seconds, and try that until it would have ended by itself."""
        due = clock.now() + delay
        self._push(Abandoned(due, next(self._order), delay, name, token, until, lease))

    def _push(self, entry: Entry | Abandoned) -> None:
        self._arrivals.append(entry)
        if not self._running.locked():
            self.start()
        elif entry.due < self._asleep_until or len(self._arrivals) > TIDY:
            _ring(self._bell)

    def entries(self) -> list[Entry | Abandoned]:
        """All there are, those of leases that are over included."""
        return [*self._heap, *self._abandoned, *self._arrivals]

    def work(self) -> float:
        """Do some of what is due; return the seconds until there is more."""
        self._asleep_until = -math.inf
        self._sort()
        leases = self._due()
        answers = self._extend(leases) if leases else True
        abandoned = bool(self._abandoned) and self._abandoned[0].due <= clock.now()
        if abandoned:
            # One at a time: it may take a while, and leases come due meanwhile.
            self._release(heapq.heappop(self._abandoned), answers)
        if leases or abandoned:
            return 0.0
        with suppress(Exception):
            # This thread is no request, at whose end Django would close what a store, or a
            # receiver of a signal, has opened.
            connections.close_all()
        ends = min(queue[0].due if queue else math.inf for queue in (self._heap, self._abandoned))
        self._asleep_until = ends
        if self._arrivals:
            return 0.0  # They came before anybody could know that we sleep.
        return min(max(0.0, ends - clock.now()), LONGEST_SLEEP)

    def _sort(self) -> None:
        with suppress(IndexError):
            while True:
                entry = self._arrivals.popleft()
                if isinstance(entry, Abandoned):
                    heapq.heappush(self._abandoned, entry)
                else:
                    lease = entry.lease()
                    if lease is not None and entry.due < lease._due:
                        # What was planned before is out of date; it goes when its time comes.
                        lease._due = entry.due
                    # Also that of a lease which is over already: while something is planned that
                    # comes sooner, nobody who takes and releases locks has to wake this thread.
                    heapq.heappush(self._heap, entry)
        if len(self._heap) > max(TIDY, 2 * self._tidied):
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._tidied = len(self._heap)

    def _due(self) -> list[Lease]:
        leases: list[Lease] = []
        now = horizon = clock.now()
        while self._heap and self._heap[0].due <= horizon and len(leases) < BATCH:
            due, _, delay, of = heapq.heappop(self._heap)
            lease = of()
            if lease is None or lease._due != due:
                continue
            lease._due = math.inf
            horizon = max(horizon, now + delay * TOGETHER)
            if _wanted(lease):
                leases.append(lease)
        return leases

    def _extend(self, leases: list[Lease]) -> bool:
        """False: the store did not answer."""
        started = clock.now()
        batch = [Extension(x.name, x.token, x.ttl, x._proof) for x in leases]
        said: list[bool | None]
        try:
            said = list(self._store.extend_many(batch))
        except BaseException:
            said = []
        answered = len(said) == len(batch)
        if not answered:
            # An outage, or a store's mistake: asked again until the leases are over.
            said = [None] * len(batch)
        for lease, extension, held in zip(leases, batch, said, strict=True):
            lease._extended([True], started + extension.ttl, held)
            # Not by the ttl that was asked for: its holder may have made it shorter meanwhile.
            left = lease._deadline - clock.now()
            if held:
                self.schedule(lease, left / FRACTION)
            elif held is None:
                delay = min(extension.ttl / AFTER_FAILURE, left / 2)
                self.schedule(lease, max(delay, AT_LEAST))
            else:
                _lost(lease)
        return answered

    def _release(self, entry: Abandoned, answers: bool) -> None:
        try:
            if not answers:
                # One question to a silent store is enough: renewals are waiting.
                raise StoreUnavailable(self._store.alias, "it was silent a moment ago")
            was_held = self._store.abandon(entry.name, entry.token)
        except StoreUnavailable:
            if clock.now() < entry.until:
                delay = min(2.0, entry.delay * 2 + 0.05)
                self.abandon(entry.name, entry.token, entry.until, entry.lease, delay)
        except BaseException:
            pass  # A store's mistake: the lease ends by itself.
        else:
            if entry.lease is None:
                delay = max(FIRST_LOOK, entry.delay * 4)
                if not was_held and delay <= LAST_LOOK and clock.now() + delay < entry.until:
                    self.abandon(entry.name, entry.token, entry.until, None, delay)
            elif was_held is not False:
                with suppress(BaseException):  # Of a receiver of the signal.
                    entry.lease._keeper.released(entry.lease)


def _run(of: ref[StoreRenewal], running: NativeLock, bell: NativeLock) -> None:
    if not running.acquire(False):
        return
    while (own := of()) is not None:
        try:
            seconds = own.work()
        except BaseException:
            # Nothing in there may end the thread: every other lease depends on it.
            seconds = 0.1
        if not own.entries():
            del own  # A store that is no longer in use may go; that rings.
        bell.acquire(timeout=seconds)


def _ring(bell: NativeLock) -> None:
    try:
        bell.release()
    except RuntimeError:
        pass  # It is ringing already.


def _wanted(lease: Lease) -> bool:
    try:
        return lease.renew and lease._extending([False])
    except BaseException:
        return False  # It is over, and a receiver of the signal meant to end its thread.


def _lost(lease: Lease) -> None:
    try:
        lease._keeper.lost(lease, "the store no longer has it")
    except BaseException:
        pass  # As above: the other leases go on.


def _counts(entry: Entry) -> bool:
    lease = entry.lease()
    return lease is not None and lease._state == HELD and lease._due == entry.due
