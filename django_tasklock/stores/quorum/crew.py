"""The threads that make the calls to one member."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from django.db import connections

from ..._compat.native_threads import are_patched, new_lock, start_thread
from ..._values import clock
from .owed import Owed

__all__ = ["Crew", "Job"]

logger = logging.getLogger("django_tasklock")

IDLE_SECONDS = 10.0
"""a thread that has nothing to do for so long ends"""
LONGEST_REST_SECONDS = 1.0
"""under gevent and eventlet a thread looks for jobs at least this often: see `Crew.post`"""

Job = Callable[[], None]

_all: WeakSet[Crew] = WeakSet()


class _Slot:
    """One thread, or the right to start one."""

    __slots__ = ("running", "since", "wakeup")

    def __init__(self, new: Callable[[], Any]) -> None:
        self.running: Any = new()
        """held by the thread for as long as it lives"""
        self.wakeup: Any = new()
        self.wakeup.acquire()
        self.since = math.inf
        """when its job began, on `clock.now`; infinite while it has none"""


class Crew:
    """Runs jobs for one member, in a few threads that are started when they are needed.

    A signal handler may raise an exception in a caller between any two instructions. So a caller
    holds no lock here: it appends the job, and wakes or starts a thread.

    Args:
        threads: how many there are at most.
        patience: a job that takes more seconds is stuck. While all threads are stuck, a few jobs
            wait for them, and no more are taken: a server that hangs occupies so many threads.
        native: whether the threads are those of the operating system also where gevent or eventlet
            has made greenlets of all others. The renewal thread needs such ones, since a greenlet
            that computes lets no other greenlet run. The callers' must be greenlets then, since
            they share connections.
        owed: what is done when there is nothing else to do.
    """

    def __init__(
        self, threads: int, patience: float, *, native: bool, owed: Owed | None = None
    ) -> None:
        self._threads, self._patience, self._owed = threads, patience, owed
        self._new: Callable[[], Any] = new_lock if native else threading.Lock
        self._native = native
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """Forget all threads and jobs. Called in a new process, which has none of them."""
        self._jobs: deque[Job] = deque()
        self._idle: deque[_Slot] = deque()
        self._slots = [_Slot(self._new) for _ in range(self._threads)]
        self._at_work: set[_Slot] = set()
        self._ended = False
        if self._owed is not None:
            self._owed.begin()

    def end(self) -> None:
        """End the threads when they have nothing to do."""
        self._ended = True
        with suppress(IndexError):
            while True:
                _wake(self._idle.pop())

    def submit(self, job: Job) -> bool:
        """Have a job done. Returns False, and takes no job, if all threads are stuck and others
        wait for them."""
        if len(self._jobs) >= self._threads and self.stuck():
            return False
        self._jobs.append(job)
        try:
            self._wake_one()
        except RuntimeError:  # The system starts no thread.
            if not any(slot.running.locked() for slot in self._slots):
                return False
        return True

    def post(self, job: Job) -> None:
        """`submit`, from another kind of thread.

        It cannot wake a greenlet of another thread: there the job is begun within a second, or with
        the next call.
        """
        self._jobs.append(job)
        if self._native or not are_patched():
            with suppress(RuntimeError):
                self._wake_one()

    def nudge(self) -> None:
        """Have some thread look at what is owed, now or after its job."""
        if not self._jobs:
            self.post(_nothing)

    def stuck(self) -> bool:
        """Whether each thread has a job that takes too long."""
        limit = clock.now() - self._patience
        return all(slot.since < limit for slot in self._slots)

    def doubtful(self) -> bool:
        """Whether some thread has a job that takes too long."""
        if not self._at_work:
            return False
        limit = clock.now() - self._patience
        return any(slot.since < limit for slot in self._slots)

    def living(self) -> int:
        """How many threads there are."""
        return sum(slot.running.locked() for slot in self._slots)

    def _wake_one(self) -> None:
        try:
            _wake(self._idle.pop())
        except IndexError:
            self._start_one()

    def _start_one(self) -> None:
        for slot in self._slots:
            if not slot.running.locked():
                work = partial(_work, self, slot)
                if self._native:
                    start_thread(work)
                else:
                    threading.Thread(target=work, daemon=True, name="tasklock-quorum").start()
                return

    def _next(self, slot: _Slot) -> Job | None:
        """The next job, when there is one; None: the thread is to end."""
        over = clock.now() + IDLE_SECONDS
        while True:
            with suppress(IndexError):
                return self._jobs.popleft()
            owed = None if self._owed is None else self._owed.next()
            if callable(owed):
                return owed
            rest = IDLE_SECONDS if owed is None else min(IDLE_SECONDS, owed)
            if not self._native and are_patched():
                rest = min(rest, LONGEST_REST_SECONDS)
            self._idle.append(slot)
            if self._jobs:
                pass  # It came before anybody could know that we rest.
            elif not self._ended and slot.wakeup.acquire(timeout=rest):
                continue
            try:
                self._idle.remove(slot)
            except ValueError:
                slot.wakeup.acquire(timeout=IDLE_SECONDS)  # Somebody is about to wake us.
                continue
            if not self._jobs and (self._ended or (owed is None and clock.now() >= over)):
                return None


def _work(crew: Crew, slot: _Slot) -> None:
    if not slot.running.acquire(False):
        return
    try:
        while (job := crew._next(slot)) is not None:
            if crew._jobs and not crew._idle:
                with suppress(RuntimeError):
                    crew._start_one()
            slot.since = clock.now()
            crew._at_work.add(slot)
            try:
                job()
            except BaseException:
                # Nothing in there may end the thread: other calls depend on it.
                logger.exception("a call to a member of a quorum ended with an error")
            finally:
                slot.since = math.inf
                crew._at_work.discard(slot)
                del job
    finally:
        with suppress(Exception):
            connections.close_all()  # What a store has opened for this thread.
        slot.running.release()


def _nothing() -> None:
    pass


def _wake(slot: _Slot) -> None:
    with suppress(RuntimeError):  # It is awake already.
        slot.wakeup.release()


def _new_process() -> None:
    for crew in _all:
        crew.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
