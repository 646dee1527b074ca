"""A call that ends when its lease is lost: an exception is raised into it, from another thread.

In the main thread the handler of a signal raises it, so that a system call is interrupted, too. In
another thread Python raises it when the call in C that is under way is over. An event loop raises
it itself.

It never comes after the call. The body's end and the alarm decide in one step which of them was
first. If it was the alarm, the end waits until what was sent has arrived, inside the ``try`` that
catches it. No mutex: an exception from a signal handler would leave it locked.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from asyncio import BaseEventLoop
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_ulong, py_object, pythonapi
from traceback import walk_stack
from typing import Any

from .._compat.native_threads import are_patched
from .._values.words import printable
from ..exceptions import InvalidLockConfig
from .lease import Lease
from .own_token import HELD

# How often a holder that may be recalled is looked after.
RECALL_SECONDS = 1.0
# What ends a call: its body, or its loss, of which nothing, or everything, was sent by now.
BODY, LOSS, SENT = "", "loss", "sent"


class Stop(KeyboardInterrupt):
    """What is raised into a call. No ``except Exception`` catches it. asyncio and psycopg end what
    they do, as for Ctrl-C: any other exception would leave a connection to PostgreSQL in use."""


def check_can_stop(what: str, stops: bool = True) -> None:
    """Raise `InvalidLockConfig` for what ``stops`` when it loses its lease, among greenlets."""
    if stops and are_patched():
        mend = "Use another pool; or leave that out, and call lease.assert_held() in the body"
        raise InvalidLockConfig(f"gevent and eventlet cannot stop {what} at a loss. {mend}")


def call_until_lost(lease: Lease, body: Callable[[], Any]) -> Any:
    """Return what ``body()`` returns. If the lease is lost meanwhile, `Stop` is raised in it.

    Raises what ``body`` raises; if the lease was lost, `LeaseLost` instead of `Stop`, or of an
    error to which that has led.
    """
    check_can_stop(f"the body under {lease.name}")
    if lease._own.alarm is not None:
        return body()  # A call around this one is stopped.
    call = _Call(lease)
    try:
        # Three exits: `Stop` and a soft time limit may each cut one short.
        with call, call, call:
            call.begin()
            lease.assert_held()
            result = body()
    except (Stop, Exception):
        if call.stopped:
            lease.assert_held()
        raise  # It is of a call around this one, or the body's own.
    if call.stopped:
        lease.assert_held()  # The body has caught it, and something in it was cut short.
    return result


def go_on(lease: Lease) -> None:
    """What is sent now goes on with the work: the call is not stopped any more."""
    lease._own.alarm = None


@contextmanager
def recalled_for(lease: Lease, later_call: Callable[[], str]) -> Iterator[Sequence[str]]:
    """Recall the holder in the block, once there is a later call: `Lease.held` is False then, but
    nobody else gets the lock before the block has ended.

    ``later_call``: the renewal thread asks it for the call's task id once a second; "": there is
    none. Yields what has the id as its one item by then.
    """
    own, jobs, found = lease._own, lease._keeper.jobs, list[str]()

    def look() -> float | None:
        if own.recalled is not found or own.state != HELD or jobs.hurries:
            return None
        if not (task_id := later_call()):
            return RECALL_SECONDS
        own.reason = f"the later call {printable(task_id)} replaces it"
        found.append(task_id)
        return None if (alarm := own.alarm) is None else alarm()

    own.recalled = found
    jobs.later(look, RECALL_SECONDS)
    try:
        yield found
    finally:
        own.recalled = ()


class _Call:
    """A call that its lease's alarm ends."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.thread = threading.get_ident()
        self.in_main = self.thread == threading.main_thread().ident
        self.before: Any = signal.getsignal(signal.SIGUSR2) or signal.SIG_DFL
        # "end": what ends it; "alarm": which alarm counts: who says so first decides. "due": the
        # handler is to raise.
        self.said: dict[str, object] = {}

    def __enter__(self) -> None: ...

    @property
    def stopped(self) -> bool:
        """Whether `Stop` was raised."""
        return self.said.get("end", BODY) != BODY

    def begin(self) -> None:
        """Have it end with its lease. In the block, as an interrupted ``__enter__`` has no exit."""
        if self.in_main:
            signal.signal(signal.SIGUSR2, self.handle)
        self.lease._own.alarm = self.alarm

    def __exit__(self, *_: object) -> None:
        while self.said.setdefault("end", BODY) == LOSS:
            time.sleep(0.001)
        time.sleep(0)  # What was sent arrives in it, as in any call of the system.
        self.lease._own.alarm = None
        if self.in_main:
            signal.signal(signal.SIGUSR2, self.before)

    def alarm(self) -> None:
        """The lease is lost, or its holder recalled: what is first ends the call. Raises `Stop` in
        the thread of the call itself."""
        if self.said.setdefault("alarm", mine := object()) is not mine:
            return
        if threading.get_ident() == self.thread:
            self.said["end"] = SENT
            raise Stop
        if self.said.setdefault("end", LOSS):
            if loop := _loop_in(self.thread):
                loop.call_soon_threadsafe(_stop)
            elif self.in_main:
                self.said["due"] = LOSS
                signal.pthread_kill(self.thread, signal.SIGUSR2)
            else:
                pythonapi.PyThreadState_SetAsyncExc(c_ulong(self.thread), py_object(Stop))
            self.said["end"] = SENT

    def handle(self, *args: Any) -> None:
        """Handle the signal, which may be another's."""
        if self.said.pop("due", ""):
            raise Stop
        if callable(self.before):
            self.before(*args)


def _stop() -> None:
    raise Stop


def _loop_in(thread: int) -> Any:
    """asyncio's loop that the body in this thread runs; None if it runs none. The loop is to raise
    `Stop` itself, at its next turn: an exception that comes in the middle of its own code may lose
    the wake-up of a task, and the loop's end would wait for that task for ever."""
    for frame, _ in walk_stack(sys._current_frames()[thread]):
        if frame.f_code is call_until_lost.__code__:
            break  # A loop around the call is not the body's.
        if frame.f_code is BaseEventLoop.run_forever.__code__:
            return frame.f_locals["self"]
    return None
