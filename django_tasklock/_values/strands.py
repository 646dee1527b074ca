"""Names for what runs in this process: no two threads, or asyncio tasks, have one name at a time.

An owner records the name. The search for deadlocks compares these names, to see whether the holder
of one lock is the one that waits for another. The code's own names would not do: it may give the
same name to several threads or tasks.
"""

from __future__ import annotations

import asyncio
import os
import threading
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

__all__ = ["name_of_task", "name_of_thread"]

_strand_of: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""the thread or task that has a name now"""
_names: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()
"""what the code calls a thread or task, and its name"""
_numbers = count(2)
_naming = threading.RLock()
"""reentrant: a signal handler may take a lock as well"""


class _Own(threading.local):
    """The name of this thread: as the code calls it, and as it is recorded."""

    called: str | None = None
    name: str = ""


_own = _Own()


def name_of_thread() -> str:
    """Return the name of the current thread, or greenlet."""
    thread = threading.current_thread()
    called = thread.name
    if _own.called != called:
        _own.name = _name(thread, called)
        _own.called = called
    return _own.name


def name_of_task(task: asyncio.Task[Any]) -> str:
    """Return the name of an asyncio task of the current thread."""
    return _name(task, f"{name_of_thread()} {task.get_name()}")


def _name(strand: Any, called: str) -> str:
    """``called``, with a number behind it if another has that name."""
    with _naming:
        known = _names.get(strand)
        if known is not None and known[0] == called:
            return known[1]
        name = called
        while _strand_of.setdefault(name, strand) is not strand:
            name = f"{called} ({next(_numbers)})"
        _names[strand] = called, name
        return name


def _after_fork() -> None:
    global _naming
    _naming = threading.RLock()
    _own.called = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
