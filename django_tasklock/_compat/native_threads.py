"""Threads and locks of the operating system, even where gevent or eventlet has patched them.

A greenlet that computes lets no other greenlet run. Renewal must go on meanwhile, so it needs a
real thread, and locks that this thread and greenlets share. Such a lock is held for a few
instructions only, never during a call to the store.

``_thread`` is a private module of CPython, which documents only ``threading`` on top of it. Of
gevent this uses the documented ``gevent.monkey.get_original``, and of eventlet
``eventlet.patcher.original``, which eventlet does not document. Read in gevent 26.9.0 and eventlet
0.41.3.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any

# A new thread is not waited for any longer.
LONGEST_BEGINNING_SECONDS = 1.0


class _OfThread(threading.local):
    """What one thread, or greenlet, is."""

    # Whether it renews leases. It must wait for no other thread, and under gevent and eventlet
    # share no socket with one.
    renews = False


this_thread = _OfThread()


def _original(name: str) -> Any:
    # Looked up in `sys.modules`: what is not imported has patched nothing.
    if (gevent := sys.modules.get("gevent.monkey")) is not None:
        return gevent.get_original("_thread", name)
    if (eventlet := sys.modules.get("eventlet.patcher")) is not None:
        return getattr(eventlet.original("_thread"), name)
    return getattr(_thread, name)


def new_lock() -> threading.Lock:
    """Return a new lock of the operating system, which nothing holds."""
    lock: threading.Lock = _original("allocate_lock")()
    return lock


def new_rlock() -> threading.RLock:
    """Return a new reentrant lock of the operating system, which nothing holds. Greenlets of one
    thread are one to it."""
    lock: threading.RLock = _original("RLock")()
    return lock


def are_patched() -> bool:
    """Whether gevent or eventlet has made greenlets of this process's threads."""
    return _thread.start_new_thread.__module__ != "_thread"


def start_thread(target: Callable[[], None]) -> None:
    """Run ``target`` in a new thread of the operating system. Return when the thread has begun.

    The thread does not keep the process alive. Raises `RuntimeError` if the system starts none.
    """
    begun = new_lock()
    begun.acquire()

    def run() -> None:
        begun.release()
        target()

    _original("start_new_thread")(run, ())
    # CPython 3.10 and 3.11 crash if the process ends before a thread that it started has begun.
    # The limit is for a system that never runs the thread: nobody waits for that.
    begun.acquire(timeout=LONGEST_BEGINNING_SECONDS)
