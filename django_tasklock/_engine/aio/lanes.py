"""The threads that call the stores for code on event loops.

A call is a round trip and no more: nobody waits for a lock in these threads. Each store has its
own lanes, so a silent store delays no other store, and many questions do not delay a release. The
history of locks is written in a lane too.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from django.core.cache import caches
from django.db import connections

from ..._compat.native_threads import are_patched, start_thread
from ..._values import clock

__all__ = ["Lane", "Lanes", "lanes_of", "off_loop", "with_own_caches"]

ASKING = 4
RELEASING = 2
"""threads of these two lanes of a store, at most. More are no faster: they take turns at the
interpreter, and the loop's thread has to wait for its own turn longer"""
NOTING = 1
"""the lane in which the history is written: one after the other, and mostly it waits for more"""
TELLING = 2
"""threads of the lane of receivers, at most"""
IDLE_SECONDS = 20.0
"""after so long without a call a thread ends"""
LAST_CALLS_SECONDS = 2.0
"""how long the end of the process waits for calls that were begun, such as releases"""
STUCK_SECONDS = 1.0
"""a call of a lane that works takes a few milliseconds"""
LOOK_SECONDS = 0.005


class Lane:
    """A few threads of this process, started when they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._counting = threading.Lock()
        """held by the lane's own threads only"""
        self._idle = self._alive = 0
        self._may_start: list[None] = [None]
        """empty while a thread is being started"""
        self._last_began = self._last_took = 0.0

    def submit(self, call: Callable[[], None]) -> None:
        """Have a call made that raises nothing. Returns at once.

        Raises `RuntimeError` if the lane has no thread and the system starts none; then the call is
        made when there is one.
        """
        self._calls.put(call)
        self._start_if_busy()

    def is_done(self) -> bool:
        """Whether all calls have been made."""
        return self._calls.empty() and self._idle >= self._alive

    def is_stuck(self) -> bool:
        """Whether the calls that are made take so long that it seems of no use to wait for one."""
        return max(self._last_took, clock.now() - self._last_began) > STUCK_SECONDS

    def _start_if_busy(self) -> None:
        if self._calls.qsize() > self._idle and self._alive < self._most:
            try:
                self._may_start.pop()
            except IndexError:
                return
            try:
                if are_patched():
                    self._start()
                else:
                    # By way of a bare thread: the garbage collector may submit a call while this
                    # thread holds a lock of the module threading.
                    start_thread(self._start)
            except RuntimeError:
                self._may_start.append(None)
                if not self._alive:
                    raise

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name="tasklock-async", daemon=True).start()
        except RuntimeError:
            self._may_start.append(None)

    def _count(self, alive: int, idle: int) -> None:
        with self._counting:
            self._alive += alive
            self._idle += idle

    def _work(self) -> None:
        self._count(1, 1)
        self._may_start.append(None)
        while True:
            try:
                call = self._calls.get(timeout=IDLE_SECONDS)
            except Empty:
                # What its last call opened, if another thread has taken the call that came then.
                _close_own()
                self._count(-1, -1)
                # A call may have come before anybody could know that this thread is about to end.
                if not self._calls.qsize():
                    return
                self._count(1, 1)
                continue
            self._count(0, -1)
            # A call may have come before this thread was counted as busy.
            with suppress(RuntimeError):
                self._start_if_busy()
            began = self._last_began = clock.now()
            with suppress(BaseException):  # It raises nothing; the thread does not depend on that.
                call()
            self._last_took = clock.now() - began
            del call  # Not kept alive while this thread is idle.
            if not self._calls.qsize():
                _close_own()
            self._count(0, 1)


class Lanes(NamedTuple):
    """The lanes of one store."""

    asking: Lane
    releasing: Lane
    noting: Lane


def _close_own() -> None:
    """This thread is no request, at whose end Django would close what a store, or a receiver of a
    signal, has opened."""
    with suppress(Exception):
        for connection in connections.all(initialized_only=True):
            connection.close()
            # The next one has the settings that are in force then.
            del connections[connection.alias]


def with_own_caches(call: Callable[[], object]) -> None:
    """Django keeps caches in the context. Those of the task's are none of this thread's."""
    known = caches.all(initialized_only=True)
    try:
        call()
    finally:
        for cache in caches.all(initialized_only=True):
            if not any(cache is one for one in known):
                with suppress(Exception):
                    cache.close()


_lanes: dict[str, Lanes] = {}
"""by the store's alias. Not kept in the store: to make one may import its client, which takes too
long for an event loop"""


def lanes_of(alias: str) -> Lanes:
    """The lanes of a store."""
    found = _lanes.get(alias)
    if found is None:
        found = _lanes.setdefault(alias, Lanes(Lane(ASKING), Lane(RELEASING), Lane(NOTING)))
    return found


_receivers = Lane(TELLING)
"""for receivers of signals, which may take long: no store's call waits for them, nor they for it"""


def off_loop(call: Callable[[], object]) -> None:
    """Make a call that raises nothing: here, or soon in a thread, in a copy of this context, if an
    event loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        call()
        return
    context = copy_context()
    with suppress(RuntimeError):  # The system starts no thread now: it is made when there is one.
        _receivers.submit(partial(context.run, with_own_caches, call))


def _make_last_calls() -> None:
    """A cancelled task may have been the last thing that the process did."""
    deadline = clock.now() + LAST_CALLS_SECONDS
    for lane in [_receivers, *(lane for lanes in list(_lanes.values()) for lane in lanes)]:
        while not lane.is_done() and clock.now() < deadline:
            time.sleep(LOOK_SECONDS)


def _forget() -> None:
    global _receivers
    _lanes.clear()
    _receivers = Lane(TELLING)


atexit.register(_make_last_calls)

if hasattr(os, "register_at_fork"):
    # The child has none of its parent's threads.
    os.register_at_fork(after_in_child=_forget)
