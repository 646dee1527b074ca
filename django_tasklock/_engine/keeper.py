"""The tokens of this process in a table, and one thread a store that looks after them.

A token is in the table before it is sent, beside a weak reference to what needs it: the `Use` of a
block, which lives as long as the block, or a lease that the application keeps. Whoever gets an
answer says so, and whoever is interrupted says so if it can. If it cannot, because an exception
came between two instructions, its `Use` dies with its frames, and the thread gives the token back.

The thread extends a lease after a third of the time that is left of it, so two calls may fail
before it is over; after a call that failed it tries again after a tenth of the ttl. It waits for
its own store only, and never uses the ORM. It starts with the first token, and ends with the store
object: not before, because under gevent its connections belong to it. A forked child has a table of
its own: it owns nothing of its parent's.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary, ref

from django.core.cache import caches
from django.db import connections

from .._compat.native_threads import NativeLock, new_lock, start_thread, this_thread
from .._values import clock
from .._values.owner import COOLING
from .._values.processes import OfProcess
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Extension, Note
from ..stores.records import Held
from .cooling import Cooling, cooled

logger = logging.getLogger("django_tasklock")

Job = Callable[[], "float | None"]

# A lease is extended after this share of the time that is left of it; after a call that failed,
# after this share of its ttl.
RENEWAL_SHARE, FAILURE_SHARE = 1 / 3, 1 / 10
# With less than this share of its ttl left, an extension by the holder, which began before, is not
# waited for any more: perhaps it was interrupted.
LATE_SHARE = 1 / 2
# A lease may be extended earlier by this share of its ttl, in one call with others. At most so many
# share a call, and its failure.
TOGETHER_SHARE, LEASES_PER_CALL = 1 / 12, 500
# How often the thread looks for what nobody refers to any more.
LOOK_SECONDS = 0.25
# When the store is asked again for a token that it did not have: the command of the interrupted
# call may still be on its way.
LATER_LOOKS_SECONDS = (0.25, 1.0, 4.0)
# Before a store that did not answer is told what is owed.
RETRY_SECONDS = 0.5
# After an error that should not have been raised.
MISTAKE_PAUSE_SECONDS = 0.1
# Of more events in a second the oldest are dropped.
MOST_EVENTS = 2000
# So many jobs are done between two looks at the leases.
JOBS_AT_ONCE = 10
# So many jobs wait before a note is left to its ttl.
MOST_JOBS = 10_000
# Why a lease is lost that was not extended in time.
RAN_OUT = "its ttl ran out"
# How long the end of the process waits for the jobs of all stores.
LAST_SECONDS = 2.0


class Holder(Protocol):
    """What the thread tells of a lease: the `Lease`."""

    def lost(self, reason: str) -> None: ...
    def given_back(self) -> None: ...


class Call:
    """One call about a lease. It is over with its last reference, also if it was interrupted."""


@dataclass(eq=False, slots=True)
class Entry:
    """All that is known of one token.

    ``of`` is what needs the token, and ``names`` the lock, or those of which one is asked for.
    ``note`` is what the acquire writes; once the lease is granted, what its release is to write.
    """

    of: ref[Any]
    names: Sequence[str]
    token: str
    ttl: float
    record: dict[str, Any]
    note: Note | None = None
    renew: bool = False
    # When the lease ends, and when the thread has to do something about it, on `clock.now`.
    until: float = math.inf
    due: float = math.inf
    granted: bool = False
    given_up: bool = False
    # Whether ``of`` is a lease that nobody gives back: its end is only no longer put off.
    bare: bool = False
    # That of the `Grant`.
    left: Callable[[], float] | None = None
    cooling: Cooling | None = None
    # Returns the lease that the token has become.
    holder: Callable[[], Holder | None] = lambda: None
    # The calls about the lease that are under way, in their order, each with its thread. One that
    # is over is removed by the callback of its reference: in C, where no signal handler can run.
    calls: dict[ref[Call], int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The lock's name, once it is granted."""
        return self.names[0]

    def begin_call(self) -> Call:
        """Return what the caller refers to as long as its call about the lease lasts."""
        call = Call()
        self.calls[ref(call, self.calls.pop)] = threading.get_ident()
        return call

    def is_next(self, call: Call, until: float) -> bool:
        """Wait for the calls of other threads that began before this one, at most until ``until``,
        on `clock.now`. Returns whether they are over. An earlier call of this thread is over: it
        was interrupted."""
        while True:
            for each, thread in list(self.calls.items()):
                if each() is call:
                    return True
                if thread != threading.get_ident():
                    break
            if clock.now() >= until:
                return False
            time.sleep(0.001)


class Keeper:
    """Looks after the tokens of one store, in the process that made it."""

    def __init__(self, store: BaseStore) -> None:
        self.store, self.process = store, os.getpid()
        self.table: dict[str, Entry] = {}
        # When each is to be done, and a number of its own: as they come, and the thread's heap of
        # them, of which one that is being done is the first.
        self.new_jobs: deque[tuple[float, int, Job]] = deque()
        self.jobs: list[tuple[float, int, Job]] = []
        self._numbers = count()
        # What `history` writes next, and not before this moment.
        self.events: deque[Any] = deque(maxlen=MOST_EVENTS)
        self.writes_at = 0.0
        # Has an item when something has died to which an entry refers. Its method `append`, written
        # in C, is the callback of weak references: no signal handler can run in it.
        self.vanished: deque[Any] = deque()
        self._wakeup, self._running = new_lock(), new_lock()
        self._wakeup.acquire()
        # When the thread has something to do, and whether something new is to be looked at.
        self._first, self._news = math.inf, False
        self._retry_at, self._mistaken = 0.0, False
        # Whether the process ends: jobs are not to wait for their moment.
        self.hurries = False
        _all[id(self)] = self

    def enter(self, entry: Entry) -> None:
        """To be called before the token is sent. Raises `RuntimeError` if the lease is to be
        renewed, and the system starts no thread."""
        self.table[entry.token] = entry
        try:
            self._start()
        except RuntimeError:
            if entry.renew:
                self.forget(entry)
                raise

    def granted(self, entry: Entry, until: float) -> None:
        """The lease is granted, and ends at ``until``, on `clock.now`."""
        entry.until, entry.granted = until, True
        self.plan(entry)

    def plan(self, entry: Entry) -> None:
        """Extend the lease in time for its present end, if it is to be renewed."""
        if entry.renew:
            now = clock.now()
            entry.due = now + (entry.until - now) * RENEWAL_SHARE
            self._note_due(entry.due, now)

    def give_up(self, entry: Entry) -> bool:
        """Have the token given back as soon as the store answers. Returns False if it is over."""
        inherited = self.process != os.getpid()
        if entry.given_up or inherited or self.table.get(entry.token) is not entry:
            return False
        now = clock.now()
        entry.renew, entry.until = False, min(entry.until, now + entry.ttl)
        if entry.cooling is not None:
            entry.until = max(entry.until, now + entry.cooling.left())
        self.later(partial(self._give_back, entry, iter(LATER_LOOKS_SECONDS)))
        entry.given_up = True  # Not before: whoever is interrupted before is called again.
        self.forget(entry)
        return True

    def forget(self, entry: Entry) -> None:
        """The token is over."""
        self.table.pop(entry.token, None)

    def give_back(self, entry: Entry) -> bool:
        """Tell the store that nobody needs the token any more: release the lock, or let it cool.

        Returns whether it held the lock. Raises `StoreUnavailable`.
        """
        store, note, cooling = self.store, entry.note, entry.cooling
        if not entry.granted:
            if note is not None:
                store.unreserve(note.key, note.text)
            names = entry.names
            if len(names) > 1:  # Of many permits at most one has this token.
                found = store.find_many(names)
                names = [info.name for info in found if info and info.token == entry.token]
            held = [store.release(name, entry.token) for name in names]
            if any(held) and note is not None:
                store.unreserve(note.key, note.text)  # The acquire may have come between the two.
            return any(held)
        if cooling is None or not (left := cooling.left()):
            return store.release(entry.name, entry.token, note)
        # The note comes first. Whoever is killed between the two has ended its run: the note says
        # so, and a redelivery of its message is not run again. If the lease turns out to be lost,
        # another run of the same message may have begun, so the note is taken back.
        if note is not None:
            store.set_note(note)
        record = cooled(entry.record, left)
        grant = store.rewrite(entry.name, Held(entry.token), left, record, COOLING)
        if note is not None and grant is None:
            with suppress(StoreUnavailable):
                store.unreserve(note.key, note.text)
        return grant is not None

    def later(self, job: Job, delay: float = 0.0) -> None:
        """Have the thread call ``job`` in ``delay`` seconds, and again after as many as it returns,
        until it returns None. One that raises `StoreUnavailable` is called again soon."""
        now = clock.now()
        self.new_jobs.append((now + delay, next(self._numbers), job))
        with suppress(RuntimeError):  # The system starts no thread.
            self._start()
        self._note_due(max(now + delay, self._retry_at), now)

    def take_back(self, key: str, text: str, seconds: float) -> None:
        """Remove the note, or end the reservation, that has this text, as soon as the store answers
        within so many seconds. Raises nothing."""
        if len(self.jobs) >= MOST_JOBS:
            return  # After an outage of many calls: they end by themselves.
        key = self.store.keyed_note(key)
        until, looks = clock.now() + seconds, iter(LATER_LOOKS_SECONDS)

        def tell() -> float | None:
            if clock.now() >= until or self.store.unreserve(key, text):
                return None
            return next(looks, None)

        self.later(tell)

    # --------------------------------------------------------------------------- the thread

    def _start(self) -> None:
        if not self._running.locked():
            # If two threads are started at the same time, one of them ends at once.
            start_thread(partial(_run, ref(self), self._running, self._wakeup))

    def wake(self) -> None:
        """Have the thread look now: it sleeps, or does not fall asleep. Raises nothing."""
        self._news = True
        with suppress(RuntimeError):  # It is woken already.
            self._wakeup.release()

    def _note_due(self, due: float, now: float) -> None:
        if due < self._first:
            self._news = True
            if due < now + LOOK_SECONDS:
                self.wake()

    def work(self) -> float:
        """Do what is due. Return the seconds until the next look."""
        if not (self._news or self.vanished) and clock.now() < self._first:
            return self._until_next()
        # Before the look: who comes meanwhile says so again.
        self._news, self._first = False, math.inf
        self.vanished.clear()
        started, due = clock.now(), []
        for entry in list(self.table.values()):
            if entry.of() is None and entry.bare:
                self.forget(entry)
            elif entry.of() is None:
                self.give_up(entry)
            elif entry.renew and entry.until <= started:
                self._lost(entry, RAN_OUT)
            elif entry.renew and entry.due <= started + entry.ttl * TOGETHER_SHARE:
                due.append(entry)
        if any(entry.due <= started for entry in due):
            for at in range(0, len(due), LEASES_PER_CALL):
                if not self._extend(due[at : at + LEASES_PER_CALL]):
                    break  # The others would get no answer either; they are looked at again.
        # Few at a time: each may take a while, and leases come due meanwhile.
        late = math.inf if self.hurries else started
        while self.new_jobs:
            heappush(self.jobs, self.new_jobs[0])
            self.new_jobs.popleft()
        for _ in range(JOBS_AT_ONCE):
            if self.jobs and self.jobs[0][0] <= late and clock.now() >= self._retry_at:
                self._do_first()
        close_own()
        jobs = math.inf if not self.jobs else 0.0 if self.hurries else self.jobs[0][0]
        dues = [entry.due for entry in list(self.table.values()) if entry.renew]
        self._first = min(max(jobs, self._retry_at), *dues, math.inf)
        return self._until_next()

    def _until_next(self) -> float:
        return max(0.0, min(self._first - clock.now(), LOOK_SECONDS))

    def _extend(self, entries: Sequence[Entry]) -> bool:
        """Extend leases in one call. Returns False if the store did not answer."""
        extended: list[Entry] = []
        calls = [(entry, entry.begin_call()) for entry in entries]
        for entry, call in calls:
            # Whoever makes a call about it now plans the next one. It may be interrupted.
            entry.due = clock.now() + LOOK_SECONDS
            # An extension by the holder does no harm at the same time: mostly it asks for the same
            # ttl. Before a release or a detachment the lease is not to be renewed any more.
            late = entry.until < clock.now() + entry.ttl * LATE_SHARE
            if entry.renew and (late or entry.is_next(call, 0)):
                extended.append(entry)
        started = clock.now()
        said: Sequence[bool | None] = ()
        try:
            batch = [Extension(each.name, each.token, each.ttl) for each in extended]
            said = self.store.extend_many(batch)
        except StoreUnavailable:
            pass
        except BaseException:
            # A store's mistake. It may be repeated, and ends with `LeaseLost`: say the cause once.
            if not self._mistaken:
                logger.exception("the lock store %s could not extend its leases", self.store.alias)
            self._mistaken = True
        answered = len(said) == len(extended)
        if not answered:
            said = [None] * len(extended)
        for entry, extension, held in zip(extended, batch, said, strict=True):
            if held:
                entry.until = started + extension.ttl
                self.plan(entry)
            elif held is None:
                entry.until = min(entry.until, started + extension.ttl)
                entry.due = clock.now() + extension.ttl * FAILURE_SHARE
        del calls, call  # They are over before a receiver of the signal is called.
        for entry, held in zip(extended, said, strict=True):
            if held is False:
                self._lost(entry, "the store no longer has it")
        return answered

    def _lost(self, entry: Entry, reason: str) -> None:
        self.forget(entry)
        if (holder := entry.holder()) is not None:
            with suppress(BaseException):  # Of a receiver of the signal: the other leases go on.
                holder.lost(reason)

    def _give_back(self, entry: Entry, looks: Iterator[float]) -> float | None:
        """The job of a token that is given up."""
        held: bool | None = None
        try:
            if clock.now() < entry.until:
                held = self.give_back(entry)
        except StoreUnavailable:
            raise
        except BaseException:
            pass  # A store's mistake: the lease ends by itself.
        if held is False and not entry.granted and (again := next(looks, None)) is not None:
            return again  # The command of the interrupted call may still be on its way.
        self.forget(entry)
        if held and (holder := entry.holder()) is not None:
            holder.given_back()
        return None

    def _do_first(self) -> None:
        """Make the call to the store that is due first; others come before it is made again."""
        job = self.jobs[0][-1]
        again: float | None = None
        try:
            again = job()
        except StoreUnavailable:
            again = RETRY_SECONDS
            self._retry_at = clock.now() + again
        except BaseException:
            pass  # A mistake of a store, or of a signal's receiver.
        if again is not None:
            self.later(job, again)
        heappop(self.jobs)


def _run(of: Callable[[], Keeper | None], running: NativeLock, wakeup: NativeLock) -> None:
    """Work until the keeper is gone. ``running`` is held meanwhile; if another thread holds it,
    this one ends at once. ``wakeup`` is held, and is released to wake the thread."""
    if not running.acquire(False):
        return
    this_thread.renews = True
    while (keeper := of()) is not None:
        try:
            seconds = keeper.work()
        except BaseException:
            # Nothing in there may end the thread, or hide what is due: leases depend on it.
            keeper._news, seconds = True, MISTAKE_PAUSE_SECONDS
        if not (keeper.table or keeper.new_jobs or keeper.jobs):
            del keeper  # A store that is no longer in use is collected.
        wakeup.acquire(timeout=seconds)
    with suppress(Exception):
        close_own()


def close_own() -> None:
    """Close what this thread has open of Django's.

    It is no request, at whose end Django would close what a store, or a receiver of a signal, has
    opened.
    """
    connections.close_all()
    caches.close_all()


_all: WeakValueDictionary[int, Keeper] = WeakValueDictionary()


def keeper_of(store: BaseStore) -> Keeper:
    """The keeper of a store."""
    found: OfProcess[Keeper] | None = vars(store).get("_keeper")
    if found is None:
        found = vars(store).setdefault("_keeper", OfProcess(partial(Keeper, store)))
    return found.own()


def _keepers() -> list[Keeper]:
    # One step of the interpreter: another thread may add one.
    found = [reference() for reference in _all.valuerefs()]
    return [keeper for keeper in found if keeper is not None and keeper.process == os.getpid()]


def finish_jobs() -> None:
    """Have the jobs done now, and wait for that, though not for long. Raises nothing.

    For the end of a process; one that ends without the handlers of `atexit` calls it.
    """
    until = clock.now() + LAST_SECONDS
    keepers = _keepers()
    for keeper in keepers:
        keeper.hurries = True
        keeper.wake()
    while any(k.vanished or k.new_jobs or k.jobs for k in keepers) and clock.now() < until:
        time.sleep(0.005)


atexit.register(finish_jobs)
