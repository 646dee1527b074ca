"""Threads that talk to ZooKeeper for those that call the store.

An exception from a signal handler, such as Celery's soft time limit, may come between any two
instructions of the main thread. In the middle of kazoo's code it would leave a request in a queue
whose thread was not woken, after which every answer is late by one; or a lock held on which
kazoo's own thread waits, and with that the session ends, and all leases. Signal handlers run in
the main thread only. So kazoo is called in threads of its own, and the caller waits for a lock of
the operating system, which a signal may interrupt at any time.

A call that its caller no longer waits for goes on to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from ..._compat.native_threads import new_lock, start_thread

__all__ = ["NoAnswer", "Workers"]

MOST = 16
"""threads of one store: calls beyond them wait"""
IDLE_SECONDS = 20.0
"""after so long without a call a thread ends"""


class NoAnswer(Exception):
    """The call was not answered in time."""


class _Call:
    """Work for a thread, and what came of it."""

    __slots__ = ("done", "error", "value", "wanted", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.value: Any = None
        self.error: BaseException | None = None
        self.wanted = True
        """False: its caller waited for a thread for so long that it has given up"""
        self.done = new_lock()
        """held until the work is done"""
        self.done.acquire()

    def do(self) -> None:
        try:
            if self.wanted:
                self.value = self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.done.release()


class Workers:
    """A few threads of this process, started when they are needed."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._counting = new_lock()
        self._idle = self._alive = 0

    def run(self, work: Callable[[], Any], seconds: float) -> Any:
        """Do the work in one of the threads. Returns, or raises, what the work does.

        Raises `NoAnswer` if that takes longer than ``seconds``.
        """
        call = self.post(work)
        if not call.done.acquire(timeout=seconds):
            call.wanted = False
            raise NoAnswer
        if call.error is not None:
            raise call.error
        return call.value

    def post(self, work: Callable[[], Any]) -> _Call:
        """Have the work done, without waiting for it."""
        call = _Call(work)
        self._calls.put(call)
        self._start_if_busy()
        return call

    def _start_if_busy(self) -> None:
        """Start a thread if calls wait and all threads are busy."""
        if self._calls.qsize() > self._idle and self._alive < MOST:
            # If the system starts none, the call waits for another one, and in vain at the worst.
            with suppress(RuntimeError):
                start_thread(self._work)

    def _count(self, alive: int, idle: int) -> None:
        with self._counting:
            self._alive += alive
            self._idle += idle

    def _work(self) -> None:
        self._count(1, 1)
        while True:
            try:
                call = self._calls.get(timeout=IDLE_SECONDS)
            except Empty:
                self._count(-1, -1)
                if not self._calls.qsize():
                    return
                # It came before its caller could know that this thread is about to end.
                self._count(1, 1)
                continue
            self._count(0, -1)
            # A call may have come before this thread was counted as busy.
            self._start_if_busy()
            call.do()
            del call  # Not kept alive while this thread is idle.
            self._count(0, 1)
