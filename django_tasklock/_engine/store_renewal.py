"""The renewal of one store, or of a shard: a thread, a heap of due times, a call for many leases.

Any thread may add an entry, and no lock is held meanwhile: the garbage collector and signal
handlers add entries too, between any two instructions, also of this module.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from weakref import ref

from .._compat.native_threads import new_lock, start_thread
from .._values import clock
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Extension
from .abandoned import Abandoned, OwedNote, Unsettled, settle
from .history import write_noted
from .lease import Lease
from .renewal_entry import Entry, counts
from .renewal_thread import close_own, run, wake

__all__ = ["RENEWAL_SHARE", "Entry", "StoreRenewal"]

logger = logging.getLogger("django_tasklock")

RENEWAL_SHARE = 1 / 3
"""a lease is extended after this share of the time that is left of it"""
FAILURE_SHARE = 1 / 10
"""after a call that failed, a lease is extended after this share of its ttl"""
SHORTEST_DELAY_SECONDS = 0.005
"""the least time between two calls for one lease, near its end, of a store that does not answer"""
TOGETHER_SHARE = 0.25
"""a lease may be extended earlier by this share of its delay, in one call with others"""
LEASES_PER_CALL = 500
"""at most so many leases share a call, and its failure"""
ENTRIES_BEFORE_TIDYING = 1024
"""the heap is rebuilt without leases that are over when it has at least so many entries"""
MOST_OWED_NOTES = 10_000
"""so many things the store is to be told before a note is left to its ttl"""
LONGEST_SLEEP_SECONDS = 3600.0
"""the thread looks at the heap at least this often"""


class StoreRenewal:
    """The renewal of the leases of one store, or of one of its shards."""

    def __init__(self, store: BaseStore, of: Callable[[BaseStore, str], StoreRenewal]) -> None:
        """``of(store, name)`` returns the renewal of the shard that has this lock now."""
        self._store = store
        self._of = of
        self.begin()

    def begin(self) -> None:
        """Forget all entries. Called in a new process, where all leases are the parent's."""
        self._heap: list[Entry] = []
        self._unsettled: list[Unsettled] = []
        """a heap too; only the thread uses the two heaps"""
        self._arrivals: deque[Entry | Unsettled] = deque()
        """entries that the thread has not sorted into its heaps yet"""
        self._order = itertools.count()
        self._wakeup = new_lock()
        self._wakeup.acquire()
        self._running = new_lock()
        """held by the thread for as long as it lives"""
        self._asleep_until = -math.inf
        self._tidied = 0
        self._mistaken = False
        """whether the store has raised what a store must not raise"""
        self.releasing: Lease | None = None
        """the lease that the thread is releasing now, until it has noted that"""

    def start(self) -> None:
        """Start the thread if it does not run. Raises `RuntimeError` if the system starts none."""
        if not self._running.locked():
            # If two threads are started at the same time, one of them ends at once.
            wakeup = self._wakeup
            start_thread(partial(run, ref(self, lambda _: wake(wakeup)), self._running, wakeup))

    def schedule(self, lease: Lease, delay: float) -> None:
        """Extend ``lease`` in ``delay`` seconds, if that is not planned for an earlier moment."""
        due = clock.now() + delay
        if due < lease._due:
            self._push(Entry(due, next(self._order), delay, ref(lease)))

    def settle_later(self, what: Unsettled, delay: float = 0.0) -> None:
        """Tell the store in ``delay`` seconds, and try again until it succeeds.

        The last try is at ``what.until``; its ``due``, ``order`` and ``delay`` are set here.
        """
        if isinstance(what, OwedNote) and self._owes() > MOST_OWED_NOTES:
            return  # After an outage of many calls: the notes end by themselves.
        due = clock.now() + delay
        self._push(what._replace(due=due, order=next(self._order), delay=delay))

    def _owes(self) -> int:
        return len(self._unsettled) + len(self._arrivals)

    def _push(self, entry: Entry | Unsettled) -> None:
        self._arrivals.append(entry)
        if not self._running.locked():
            self.start()
        elif entry.due < self._asleep_until or len(self._arrivals) > ENTRIES_BEFORE_TIDYING:
            wake(self._wakeup)

    def entries(self) -> list[Entry | Unsettled]:
        """All, also those of leases that are over."""
        return [*self._heap, *self._unsettled, *self._arrivals]

    def work(self) -> float:
        """Do a part of what is due. Return the seconds until the next entry is due."""
        self._asleep_until = -math.inf
        self._sort()
        leases = self._due()
        answers = self._extend(leases) if leases else True
        unsettled = bool(self._unsettled) and self._unsettled[0].due <= clock.now()
        if unsettled:
            # One at a time: it may take a while, and leases come due meanwhile.
            self._settle(heapq.heappop(self._unsettled), answers)
        if leases or unsettled:
            return 0.0
        with suppress(Exception):
            write_noted(self._store.alias)
            close_own()
        self._forget_ended()
        ends = min(queue[0].due if queue else math.inf for queue in (self._heap, self._unsettled))
        self._asleep_until = ends
        if self._arrivals:
            return 0.0  # They came before anybody could know that we sleep.
        return min(max(0.0, ends - clock.now()), LONGEST_SLEEP_SECONDS)

    def _sort(self) -> None:
        with suppress(IndexError):
            while True:
                entry = self._arrivals.popleft()
                if not isinstance(entry, Entry):
                    heapq.heappush(self._unsettled, entry)
                else:
                    lease = entry.lease()
                    if lease is not None and entry.due < lease._due:
                        # What was planned before is out of date; it goes when its time comes.
                        lease._due = entry.due
                    # Also that of a lease which is over already: while something is planned that
                    # comes sooner, nobody who takes and releases locks has to wake this thread.
                    heapq.heappush(self._heap, entry)
        if len(self._heap) > max(ENTRIES_BEFORE_TIDYING, 2 * self._tidied):
            self._heap = [entry for entry in self._heap if counts(entry)]
            heapq.heapify(self._heap)
            self._tidied = len(self._heap)

    def _forget_ended(self) -> None:
        """Forget entries of leases that are over, as far as a part of their delay ahead.

        Most leases are released long before they are due. If each one's entry woke this thread,
        that would cost a quarter of taking and releasing the lock, ``ttl / 3`` later. The rest
        stays: see `_sort`.
        """
        now, heap = clock.now(), self._heap
        while heap and heap[0].due < now + heap[0].delay * TOGETHER_SHARE and not counts(heap[0]):
            heapq.heappop(heap)

    def _due(self) -> list[Lease]:
        leases: list[Lease] = []
        now = horizon = clock.now()
        while self._heap and self._heap[0].due <= horizon and len(leases) < LEASES_PER_CALL:
            due, _, delay, of = heapq.heappop(self._heap)
            lease = of()
            if lease is None or lease._due != due:
                continue
            lease._due = math.inf
            horizon = max(horizon, now + delay * TOGETHER_SHARE)
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
        except StoreUnavailable:
            said = []
        except BaseException:
            # A store's mistake. It may be repeated, and ends with `LeaseLost`: say the cause once.
            if not self._mistaken:
                logger.exception("the lock store %s could not extend its leases", self._store.alias)
            self._mistaken = True
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
                self._again(lease, left * RENEWAL_SHARE)
            elif held is None:
                delay = min(extension.ttl * FAILURE_SHARE, left / 2)
                self._again(lease, max(delay, SHORTEST_DELAY_SECONDS))
            else:
                _lost(lease)
        return answered

    def _again(self, lease: Lease, delay: float) -> None:
        # Another shard may have the lock by now, and one shard must not wait for another.
        try:
            self._of(self._store, lease.name).schedule(lease, delay)
        except RuntimeError:
            # The system starts no thread for that shard: this one goes on with the lease.
            lease._due = math.inf
            self.schedule(lease, delay)

    def _settle(self, what: Unsettled, answers: bool) -> None:
        self.releasing = what.lease if isinstance(what, Abandoned) else None
        again = settle(self._store, what, answers=answers)
        self.releasing = None
        if again is None:
            return
        try:
            self._of(self._store, what.name).settle_later(what, again.delay)
        except RuntimeError:
            self.settle_later(what, again.delay)
        if again.silent:
            # The others would get no answer either, each after a time limit.
            due = clock.now() + again.delay
            self._unsettled = [each._replace(due=max(each.due, due)) for each in self._unsettled]
            heapq.heapify(self._unsettled)


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
