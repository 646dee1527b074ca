"""What stays right when a signal handler raises an exception between any two instructions.

Celery's soft time limit and Ctrl-C are such handlers. A lock that a thread holds at that moment
stays held; so does that within a ``threading.Event``, a ``Condition`` or a ``queue.Queue``. Nothing
here takes a lock and gives it back: each step is one call of a function in C, in which no handler
runs.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from traceback import walk_tb
from typing import Any


class Bell:
    """Wakes a thread that sleeps, or is about to: a lock that is held, and is released to ring.

    One thread sleeps by it. Any other may ring, and several may at the same time.
    """

    def __init__(self, lock: threading.Lock | None = None) -> None:
        """``lock``: which nothing holds; None: one of this thread, or greenlet."""
        self._lock = threading.Lock() if lock is None else lock
        self._lock.acquire()
        # Called with each ring, for one that sleeps by other means.
        self.waker: Callable[[], object] | None = None

    def ring(self) -> None:
        """Wake the thread, now or when it next sleeps. Raises nothing."""
        with suppress(RuntimeError):  # It was rung already.
            self._lock.release()
        # In this order: a waker that is set between the two is called for the bell.
        if self.waker is not None:
            self.waker()

    def sleep(self, seconds: float) -> bool:
        """Return when it is rung, or after so long. Returns whether it was rung; that may be lost
        with an interruption, so the caller looks again for what it waits for."""
        return self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


def interrupts(error: BaseException) -> bool:
    """Whether an exception was raised into a call from outside, by a signal handler, such as a soft
    time limit: its traceback leads through a handler that is installed."""
    handlers: list[Any] = [*map(signal.getsignal, signal.valid_signals())]
    # A handler may be a function, a method, a partial, or an object that is called.
    inner = [getattr(each, "func", type(each).__call__) for each in handlers if callable(each)]
    codes = {getattr(each, "__code__", None) for each in (*handlers, *inner)} - {None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))
