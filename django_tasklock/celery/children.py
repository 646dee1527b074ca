"""Calls back when a pool child of this worker's main process is dead.

The kernel reports the death by a pidfd. Unlike a pid, a pidfd never means another process later.
Each child has one pidfd for its whole life, so to watch one more run costs a single poll.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery.signals import worker_ready

from .._compat.celery_worker import event_loop, hub_of, keep_reading
from .._compat.python import has_pidfd, open_pidfd

__all__ = ["Children", "Watch", "children"]


class Child:
    """One child process, its pidfd, and the runs that are watched in it."""

    __slots__ = ("fd", "is_dead", "runs")

    def __init__(self, pid: int) -> None:
        """Raises `ProcessLookupError` if there is no such process, or another `OSError`."""
        self.fd = open_pidfd(pid)
        self.runs: set[Watch] = set()
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        self.is_dead = partial(poller.poll, 0)


class Watch:
    """One run that is watched until it has ended. ``died`` is called if its child dies before."""

    __slots__ = ("child", "died")

    def __init__(self, died: Callable[[], None]) -> None:
        self.died = died
        self.child: Child | None = None

    def stop(self) -> None:
        """Stop watching: ``died`` is not called any more."""
        if self.child is not None:
            self.child.runs.discard(self)


class Children:
    """Calls ``died`` of each watched run once, when its process is dead.

    It is called in the worker's event loop, or in a thread if the worker has no loop. Without
    pidfds (before Linux 5.3, or on other systems) it is never called, and a dead child's lease
    ends with its ttl.
    """

    def __init__(self) -> None:
        self._by_pid: dict[int, Child] = {}
        # The handler of a cold shutdown ends the pool, which accepts and ends runs, in whatever the
        # main thread was at.
        self._lock = threading.RLock()
        self._loop: Any = None
        self._thread: threading.Thread | None = None
        self._deaths: Any = None
        """an epoll of all pidfds, so that the event loop watches a single file"""

    def watch(self, pid: int, died: Callable[[], None]) -> Watch:
        """Watch a run in the child process ``pid``. ``died`` is called at once if it is dead."""
        child = self._by_pid.get(pid)
        if child is not None and child.is_dead():
            # The pid belongs to another process now.
            self._report_death(pid, child)
        watch = Watch(died)
        if not has_pidfd():
            return watch
        try:
            with self._lock:
                self._add(watch, pid)
        except ProcessLookupError:
            died()
        except OSError:
            pass
        return watch

    def use(self, loop: Any) -> None:
        """Set the worker's event loop; None: it has none."""
        with self._lock:
            self._loop = loop
            self._wait_for_deaths()

    def in_loop(self) -> bool:
        """Return whether ``died`` is called in the worker's event loop."""
        return self._loop is not None

    def _add(self, watch: Watch, pid: int) -> None:
        child = self._by_pid.get(pid)
        if child is None:
            child = self._new_child(pid)
            # A worker that is part of another program may send no signal when it is ready.
            self._loop = self._loop or event_loop()
        child.runs.add(watch)
        watch.child = child
        self._wait_for_deaths()

    def _new_child(self, pid: int) -> Child:
        new = Child(pid)
        child = self._by_pid.setdefault(pid, new)
        if child is not new:
            # A signal handler was quicker.
            os.close(new.fd)
            return child
        if self._deaths is None:
            self._deaths = select.epoll()
        self._deaths.register(child.fd, select.EPOLLIN)
        return child

    def _wait_for_deaths(self) -> None:
        if self._deaths is None:
            return
        if self._loop is not None:
            keep_reading(
                self._loop, self._deaths.fileno(), self._report_deaths, 0, self._wait_for_deaths
            )
        elif self._thread is None and self._by_pid:
            self._thread = threading.Thread(target=self._thread_main, daemon=True)
            self._thread.start()

    def _thread_main(self) -> None:
        while True:
            self._report_deaths(None)
            with self._lock:
                if not self._by_pid:
                    self._thread = None
                    return

    def _report_deaths(self, timeout: float | None) -> None:
        dead = {fd for fd, _ in self._deaths.poll(timeout)}
        for pid, child in list(self._by_pid.items()):
            if child.fd in dead:
                self._report_death(pid, child)

    def _report_death(self, pid: int, child: Child) -> None:
        with self._lock:  # The waiting thread may report the same death.
            fd, child.fd = child.fd, -1
            if fd < 0:
                return
            del self._by_pid[pid]
            # Closing it is not enough: processes that were forked since have it open as well.
            self._deaths.unregister(fd)
            os.close(fd)
        with suppress(KeyError):
            while True:
                child.runs.pop().died()


children = Children()


@worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    children.use(hub_of(sender))
