"""Which thread, greenlet, asyncio and Celery task runs now, and a list of its own for each of them.

A context variable would not do: a new asyncio task, `asyncio.to_thread` and asgiref's
``sync_to_async`` get a copy of the context of those who start them, and run beside them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from .._compat.running_task import running_task
from .._values.owner_record import INSIDE, owner_record

__all__ = ["ListOfEach", "Running", "acting_for", "acts_for", "job_here", "record_here", "running"]

T = TypeVar("T")


class Running(NamedTuple):
    """What runs now, in this thread.

    ``greenlet`` is None in the main greenlet of a thread, and ``task`` outside of asyncio's tasks.
    Both may be there: a greenlet may run an event loop, and a task may run greenlets.
    """

    greenlet: Any
    task: Any

    def refs(self) -> tuple[Any, Any]:
        """Weak references to both, as `is_of` compares them."""
        return tuple(None if x is None else ref(x) for x in self)  # type: ignore[return-value]

    def is_of(self, refs: tuple[Any, Any]) -> bool:
        """Whether these are the same greenlet and the same task, none of which has ended."""
        return all(
            x is (None if weak is None else weak()) and (x is None) is (weak is None)
            for x, weak in zip(self, refs, strict=True)
        )


class _Acting(threading.local):
    """For whom this thread acts."""

    who: Running | None = None
    job: tuple[str, str] | None = None
    """the Celery task for which the asyncio task works: its name and its id"""


_acting = _Acting()


@contextmanager
def acting_for(who: Running, job: tuple[str, str] | None = None) -> Iterator[None]:
    """Have `running` return ``who``, and `job_here` ``job``, in this thread: it makes a call for an
    asyncio task."""
    before = _acting.who, _acting.job
    _acting.who, _acting.job = who, job
    try:
        yield
    finally:
        _acting.who, _acting.job = before


def acts_for() -> Any:
    """The asyncio task for which this thread makes a call; None if it makes none for a task."""
    return None if _acting.who is None else _acting.who.task


def running() -> Running:
    """Return what runs now, or for whom this thread makes a call."""
    if _acting.who is not None:
        return _acting.who
    greenlet = None
    # Looked up in `sys.modules`: where it is not imported, there are no greenlets.
    current = getattr(sys.modules.get("greenlet"), "getcurrent", None)
    if current is not None:
        greenlet = current()
        if greenlet.parent is None:  # A thread's main greenlet.
            greenlet = None
    try:
        task = asyncio.current_task()
    except RuntimeError:  # No event loop runs in this thread.
        task = None
    return Running(greenlet, task)


def job_here() -> tuple[str, str] | None:
    """Return the name and the id of the Celery task that runs now, or for which this thread makes a
    call; None if none does."""
    return running_task() if _acting.who is None else _acting.job


def record_here(task: str | None, task_id: str | None) -> dict[str, Any]:
    """Return `owner_record` of a lock that is taken here.

    ``task`` and ``task_id``: those of the task whose own lock it is. Without both, code that runs
    inside a Celery task records that task.
    """
    job = job_here() if task is None and task_id is None else None
    return owner_record(task, task_id) if job is None else owner_record(*job) | {INSIDE: True}


class ListOfEach(Generic[T]):
    """A list for each thread, greenlet and asyncio task. It goes away with its owner.

    No key of it is a number: that of a thread, or the ``id()`` of a greenlet, is used again.
    """

    def __init__(self) -> None:
        self._of_thread = _OfThread()
        self._of_others: WeakKeyDictionary[Any, list[T]] = WeakKeyDictionary()

    def of(self, who: Running) -> list[T]:
        """Return the list of the task, else that of the greenlet, else that of this thread."""
        innermost = who.greenlet if who.task is None else who.task
        if innermost is None:
            return self._of_thread.items
        found = self._of_others.get(innermost)
        if found is None:
            found = self._of_others[innermost] = []
        return found


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.items: list[Any] = []
