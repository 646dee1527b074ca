"""Locks in the memory of one process, for tests: the whole contract in its plainest form."""

from __future__ import annotations

import datetime as dt
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar
from weakref import WeakSet, WeakValueDictionary

from .._compat.native_threads import new_rlock
from .._values import clock
from .._values.arguments import base_of
from .._values.interruptions import Bell
from .._values.lock_info import RARE, Event
from .._values.owner import SINCE, Owner
from .._values.processes import OfProcess
from .._values.tokens import chance
from ..conf import StoreSettings
from .base import BaseStore, Finding, Grant, Question, Refusal
from .event_text import is_about
from .records import Change, Done, Entry, Record, after, fits, is_listed, left_of, waiter_of

# How many events are kept, and how many rare ones.
HISTORY_EVENTS = 10_000
# The probability that a new record also removes all that have ended: they stay few, uncounted.
TIDY_CHANCE = 1 / 1024
# How often a waiter looks whether the lease that it waits for is over: nobody tells it when a test
# moves the time. On an event loop the first in the queue does so, and the others more rarely.
LOOK_SECONDS, OTHERS_LOOK_SECONDS = 0.05, 1.0

_all: WeakSet[MemoryStore] = WeakSet()


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
    """An entry, until it ``ends``: as soon as one of two clocks says so, `today` or `clock.now`.

    The real clock counts beside the one that a test may set, so that the store agrees with
    `Lease.held`, which goes by it, and so that a lease taken in a future that a test has left again
    does not last until that future.
    """

    entry: Entry
    ends: tuple[float, float]

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
    # Held while anything of a memory store is read or changed, and never longer.
    guard_of: ClassVar[OfProcess[threading.RLock]] = OfProcess(new_rlock)
    # Of all stores of this process: a test may replace its store, and keep its rows.
    last_fence: ClassVar[int] = 0

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._kept: dict[str, Kept] = {}
        # The rare ones are the second.
        self._events = deque[Event](maxlen=HISTORY_EVENTS), deque[Event](maxlen=HISTORY_EVENTS)
        # The waiters, by their tokens, in the order in which they came. One whose caller is gone is
        # not among them any more.
        self._queue = OfProcess[WeakValueDictionary[str, MemoryWaiter]](WeakValueDictionary)
        with self.guard:
            _all.add(self)

    @property
    def guard(self) -> threading.RLock:
        """That of this process: another one's may be held by a thread that is not here."""
        return self.guard_of.own()

    @property
    def queue(self) -> WeakValueDictionary[str, MemoryWaiter]:
        """That of this process: the waiters of another one are threads that are not here."""
        return self._queue.own()

    @classmethod
    def clear_all(cls) -> None:
        """Forget all locks, waiters, notes, reservations and events of all memory stores of this
        process.

        For the end of a test, so that the next one finds no lock that this one has left behind.
        Whoever holds a lease loses it; no signal is sent before it notices.
        """
        with cls.guard_of.own():
            for store in _all:
                for waiter in [*store.queue.values()]:
                    waiter.cut = True
                    waiter.bell.ring()
                for kept in (store._kept, store.queue, *store._events):
                    kept.clear()

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        names = [change.name for change in changes]
        with self.guard:
            there = self.get(names)
            made = all(map(fits, changes, there))
            if made:
                for change, entry in zip(changes, there, strict=True):
                    new = after(change, entry, self._next_fence(), least_fence)
                    if new is None:  # The next call that looks there hands it over.
                        self._kept.pop(change.name, None)
                    elif new is not entry:
                        self._keep(new)
            return Done(made, self.get(names))

    def get(self, names: Sequence[str]) -> list[Entry | None]:
        with self.guard:
            return [self._entry(name) for name in names]

    def waiter(self, question: Question) -> MemoryWaiter:
        return MemoryWaiter(self, question)

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        with self.guard:
            queue = [waiter.record for waiter in self.queue.values() if waiter.base == name]
        return [*map(waiter_of, queue[:limit])]

    def record(self, events: Sequence[Event]) -> None:
        with self.guard:
            for event in events:
                self._events[event.kind in RARE].append(event)

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> list[Event]:
        with self.guard:
            kept = [event for events in self._events for event in reversed(events)]
        found = [event for event in kept if is_about(event, name, task_id)]
        return sorted(found, key=attrgetter("at"), reverse=True)[:limit]

    def check(self) -> Iterable[Finding]:
        what = "it keeps its locks in memory: they exclude within one process only"
        mend = "It is for tests. Use a store that all processes share, such as one on Redis."
        yield Finding("memory", True, what, mend)

    def granted(self, entry: Entry, *, noted: bool = False) -> Grant:
        kept = self._kept.get(entry.name)
        if kept is None or kept.entry.fence != entry.fence:  # It is over already.
            return Grant(entry.name, entry.fence, noted, lambda: 0.0)
        return Grant(entry.name, entry.fence, noted, kept.left)

    def waiting_for(self, name: str) -> list[MemoryWaiter]:
        """The waiters that may have this lock, the next one first. The caller holds the guard."""
        return [waiter for waiter in self.queue.values() if name in waiter.question.names]

    def _hand_over(self, name: str) -> Kept | None:
        """Give a lock that has ended to its first waiter. Returns that one's lease, if any."""
        self._kept.pop(name, None)
        waiting = self.waiting_for(name)
        # Nobody gets a permit while anything holds the lock whose permit it is.
        may = (each for each in waiting if each.base == name or not self._entry(each.base))
        first = next(may, None)
        if first is None:
            return None
        # In this order: after an interruption the waiter finds itself the holder when it looks.
        kept = self._keep(Entry(name, first.record, first.question.ttl, self._next_fence()))
        self.queue.pop(first.token, None)
        return kept

    def _next_fence(self) -> int:
        return max(self.last_fence + 1, int(today() * 1_000_000))

    def _keep(self, entry: Entry) -> Kept:
        """Put an entry under its name, and wake the waiters of this lock."""
        if chance.random() < TIDY_CHANCE:
            self._kept = {old: each for old, each in self._kept.items() if each.left() > 0}
        MemoryStore.last_fence = max(self.last_fence, entry.fence or 0)
        now, seconds = today(), left_of(entry)
        ends = now + seconds, clock.now() + seconds
        kept = self._kept.get(entry.name)
        if kept is None or entry.began is None:
            kept = self._kept[entry.name] = Kept(entry._replace(began=now), ends)
        else:  # The grant of the lease looks there how much is left of it.
            kept.entry, kept.ends = entry, ends
        for waiter in self.waiting_for(entry.name):
            waiter.bell.ring()
        return kept

    def _entry(self, name: str) -> Entry | None:
        kept = self._kept.get(name)
        if kept is None or kept.left() <= 0:
            kept = self._hand_over(name)
        if kept is None:
            return None
        waiting = self.waiting_for(name)
        since = waiting[0].record[SINCE] if waiting else None
        left = max(0.0, kept.left())
        return kept.entry._replace(left=left, waiters=len(waiting), waiting_since=since)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        with self.guard:
            found = [self._entry(name) for name in [*self._kept] if is_listed(name, prefix)]
        return iter(sorted(filter(None, found), key=left_of))


class MemoryWaiter:
    """See `Waiter`."""

    ready = True

    def __init__(self, store: MemoryStore, question: Question) -> None:
        self._store, self.question, self.token = store, question, question.token
        self.base = base_of(question.names[0], question.owner.get("slots"))
        self.record = {**question.owner, "token": self.token, "at": today(), SINCE: today()}
        self.cut, self.ahead = False, 0
        # What held the locks when it was last told.
        self._told: list[Record | None] = []
        self.bell = Bell()

    def ask(self) -> Grant | Refusal:
        store = self._store
        with store.guard:
            self.cut, self.ahead = False, 0
            answer = store.acquire(*self.question)
            if isinstance(answer, Grant):
                store.queue.pop(self.token, None)
            else:
                store.queue.setdefault(self.token, self)
                self.ahead = store.waiting_for(self.question.names[0]).index(self)
                self._told = [entry.record for entry in self._holders()]
            return answer

    def wait(self, seconds: float) -> Grant | Refusal | None:
        deadline = clock.now() + seconds
        while True:
            with self._store.guard:
                news = self._news()
            left = deadline - clock.now()
            if news is not None or left <= 0 or self.cut:
                return news
            self.bell.sleep(min(left, LOOK_SECONDS))

    def wake_by(self, wake: Callable[[], None]) -> float:
        self.bell.waker = wake
        if self.bell.sleep(0):
            wake()
        # The first waiter looks for all of them whether a lease is over.
        return OTHERS_LOOK_SECONDS if self.ahead else LOOK_SECONDS

    def leave(self) -> Grant | None:
        with self._store.guard:
            self._store.queue.pop(self.token, None)
            news = self._news()
            return news if isinstance(news, Grant) else None

    def quit(self) -> None:
        self.leave()

    def _news(self) -> Grant | Refusal | None:
        """What it was handed, or who holds the locks now if that has changed. The caller holds the
        guard."""
        holders = self._holders()
        for entry in holders:
            if entry.token == self.token:
                self._store.queue.pop(self.token, None)
                return self._store.granted(entry)
        told, self._told = self._told, [entry.record for entry in holders]
        if told == self._told or not holders:
            return None
        return self._store.refused(holders)

    def _holders(self) -> list[Entry]:
        return [entry for entry in self._store.get(self.question.names) if entry is not None]
