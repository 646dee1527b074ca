"""One thread a store: it looks after the leases of this process, and does jobs in between.

The thread waits for its own store only, and never uses the ORM. It starts with the first token, and
ends with the store object: not before, because under gevent its connections belong to it.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any
from weakref import WeakValueDictionary, ref

from django.core.cache import caches
from django.db import connections

from .._compat.native_threads import new_lock, start_thread, this_thread
from .._values import clock
from .._values.interruptions import Bell
from .._values.processes import OfProcess, own_of
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore

Job = Callable[[], "float | None"]

# How often the thread looks for what nobody refers to any more.
LOOK_SECONDS = 0.25
# Before a store that did not answer is asked again.
RETRY_SECONDS = 0.5
# After an error that should not have been raised.
MISTAKE_PAUSE_SECONDS = 0.1
# So many jobs are done between two looks at the leases: each may take a while.
JOBS_AT_ONCE = 10
# Of more events that come together the oldest are dropped.
MOST_EVENTS = 10_000
# How long the end of the process waits for the jobs of all stores.
LAST_SECONDS = 2.0


class Jobs:
    """The jobs of one store and process, and the thread that does them."""

    def __init__(self) -> None:
        # The keeper's: its tokens, and what looks after them, which returns when it is to be called
        # again, on `clock.now`.
        self.tokens: dict[str, Any] = {}
        self.look: Callable[[], float] = lambda: math.inf
        # Heaps of jobs, each with its moment and a number of its own. The job that is being done is
        # still there, as the first. Those about notes come last: there may be many, and a server
        # may refuse them for ever.
        self.planned: list[tuple[float, int, Job]] = []
        self.notes: list[tuple[float, int, Job]] = []
        # As they come, each with its heap.
        self.new: deque[tuple[list[Any], tuple[float, int, Job]]] = deque()
        self._numbers = count()
        # Before this moment no job is done: the store did not answer.
        self.retry_at = 0.0
        # When the thread has something to do, and whether something new is to be looked at.
        self.first, self.news = math.inf, False
        # Has an item when something has died to which a token refers. Its method `append`, written
        # in C, is the callback of weak references: no signal handler can run in it.
        self.vanished: deque[Any] = deque()
        # Whether the process ends: jobs are not to wait for their moment.
        self.hurries = False
        # The history's: what is written next, not before which moment, and whether the thread is
        # writing what it has taken from there.
        self.events: deque[Any] = deque(maxlen=MOST_EVENTS)
        self.writes_at, self.writes = 0.0, False
        # Held by the thread as long as it runs.
        self.running = new_lock()
        self._bell = Bell(new_lock())
        _all.own()[id(self)] = self

    def __len__(self) -> int:
        """How many are not done yet."""
        return len(self.new) + len(self.planned) + len(self.notes)

    def later(self, job: Job, delay: float = 0.0, *, about_note: bool = False) -> None:
        """Have the thread call ``job`` in ``delay`` seconds, and again after as many as it returns,
        until it returns None. One that raises `StoreUnavailable` is called again soon."""
        due = clock.now() + delay
        heap = self.notes if about_note else self.planned
        self.new.append((heap, (due, next(self._numbers), job)))
        with suppress(RuntimeError):  # The system starts no thread.
            self.start()
        due = max(due, self.retry_at)
        if due < self.first:
            self.news = True
            if due < clock.now() + LOOK_SECONDS:
                self.wake()

    def start(self) -> None:
        """Start the thread, if it does not run. Raises `RuntimeError` if the system starts none."""
        if not self.running.locked():
            # If two threads are started at the same time, one of them ends at once.
            start_thread(partial(_run, ref(self), self.running, self._bell))

    def wake(self) -> None:
        """Have the thread look now: it sleeps, or does not fall asleep. Raises nothing."""
        self.news = True
        self._bell.ring()

    def work(self) -> float:
        """Do what is due. Return the seconds until the next look."""
        if self.news or self.vanished or clock.now() >= self.first:
            # Before the look: a caller who comes meanwhile says so again.
            self.news, self.first = False, math.inf
            vanished, started = len(self.vanished), clock.now()
            leases = self.look()
            for _ in range(vanished):
                self.vanished.popleft()
            self._do_some(math.inf if self.hurries else started)
            # This is no request, at whose end Django would close what a store, or a receiver of a
            # signal, has opened.
            connections.close_all()
            caches.close_all()
            self.first = min(leases, self._first_job())
        return max(0.0, min(self.first - clock.now(), LOOK_SECONDS))

    def _do_some(self, late: float) -> None:
        """Do jobs that are due at ``late``."""
        while self.new:
            heappush(*self.new[0])
            self.new.popleft()
        for _ in range(JOBS_AT_ONCE):
            for heap in (self.planned, self.notes):
                if heap and heap[0][0] <= late and clock.now() >= self.retry_at:
                    self._do_first(heap)
                    break

    def _do_first(self, heap: list[tuple[float, int, Job]]) -> None:
        job = heap[0][-1]
        again: float | None = None
        try:
            again = job()
        except StoreUnavailable:
            again = RETRY_SECONDS
            self.retry_at = clock.now() + again
        except BaseException:
            pass  # A mistake of a store, whose lease ends by itself, or of a signal's receiver.
        if again is not None:
            self.later(job, again, about_note=heap is self.notes)
        heappop(heap)

    def _first_job(self) -> float:
        """When the next job is to be done."""
        if self.hurries and len(self):
            return self.retry_at
        first = [jobs[0][0] for jobs in (self.planned, self.notes) if jobs]
        return max(self.retry_at, min(first, default=math.inf))


def _run(of: Callable[[], Jobs | None], running: threading.Lock, bell: Bell) -> None:
    """Work until the store is gone. ``running`` is held meanwhile; if another thread holds it, this
    one ends at once. ``bell`` wakes the thread."""
    if not running.acquire(False):
        return
    this_thread.renews = True
    while (jobs := of()) is not None:
        try:
            seconds = jobs.work()
        except BaseException:
            # Nothing in there may end the thread, or hide what is due: leases depend on it.
            jobs.news, seconds = True, MISTAKE_PAUSE_SECONDS
        if not (len(jobs) or jobs.tokens):
            del jobs  # A store that is no longer in use is collected.
        bell.sleep(seconds)


_all: OfProcess[WeakValueDictionary[int, Jobs]] = OfProcess(WeakValueDictionary)


def jobs_of(store: BaseStore) -> Jobs:
    """The jobs of a store."""
    return own_of(store, "_jobs", lambda _: Jobs())


def all_jobs() -> list[Jobs]:
    """Those of all stores of this process."""
    # One step of the interpreter: another thread may add one.
    found = [reference() for reference in _all.own().valuerefs()]
    return [jobs for jobs in found if jobs is not None]


def finish_jobs() -> None:
    """Have the jobs done now, and wait for that, though not for long. Raises nothing.

    For the end of a process; one that ends without the handlers of `atexit` calls it.
    """
    until = clock.now() + LAST_SECONDS
    everyone = all_jobs()
    for jobs in everyone:
        jobs.hurries = True
        jobs.wake()
    while any(len(jobs) or jobs.vanished for jobs in everyone) and clock.now() < until:
        time.sleep(0.005)


atexit.register(finish_jobs)
