"""Threads and locks of the operating system, also where gevent or eventlet has patched them.

A greenlet that computes never lets another one run. What must go on beside it, renewal, needs
a real thread, and locks that such a thread can share with greenlets: they are held for a few
instructions only, never across a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["NativeLock", "new_lock", "start_thread"]


class NativeLock(Protocol):
    """What ``_thread.allocate_lock()`` returns."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc: object) -> None: ...


def _original(name: str) -> Any:
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None:
        return gevent.get_original("_thread", name)
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None:
        return getattr(eventlet.original("_thread"), name)
    import _thread

    return getattr(_thread, name)


def new_lock() -> NativeLock:
    """A lock of the operating system, not held."""
    lock: NativeLock = _original("allocate_lock")()
    return lock


def start_thread(target: Callable[[], None]) -> None:
    """Run ``target`` in a thread of the operating system that never keeps the process alive."""
    _original("start_new_thread")(target, ())
