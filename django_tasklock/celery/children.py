"""The pool children of a worker's main process, and who is to be told when one of them is dead.

The kernel says so, by a pidfd, which names one process and never another that has its number
later. Each child has one for its life: to watch a run in it asks the kernel no more than whether
the child still lives.
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
from kombu.asynchronous import get_event_loop

__all__ = ["Children", "Watch", "children"]


class Child:
    """One process, by its pidfd, and the runs that are watched in it."""

    __slots__ = ("fd", "is_dead", "runs")

    def __init__(self, pid: int) -> None:
        """Raises `OSError`; `ProcessLookupError` if there is no such process."""
        self.fd = os.pidfd_open(pid)
        self.runs: set[Watch] = set()
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        self.is_dead = partial(poller.poll, 0)


class Watch:
    """One run that is to hear of its child's death, until it has come to its end."""

    __slots__ = ("child", "died")

    def __init__(self, died: Callable[[], None]) -> None:
        self.died = died
        self.child: Child | None = None

    def stop(self) -> None:
        """No longer of interest."""
        if self.child is not None:
            self.child.runs.discard(self)


class Children:
    """Calls ``died`` of a watched run once, when its process is dead.

    In the worker's event loop; in a thread where there is no loop; not at all where there is
    no pidfd (before Linux 5.3, or elsewhere): the lease's end is what is left then.
    """

    def __init__(self) -> None:
        self._by_pid: dict[int, Child] = {}
        self._lock = threading.Lock()
        self._loop: Any = None
        self._thread: threading.Thread | None = None
        self._deaths: Any = None
        """an epoll of all the pidfds, the one file that a loop has to know"""

    def watch(self, pid: int, died: Callable[[], None]) -> Watch:
        """A run in the process ``pid``, a child of this one."""
        child = self._by_pid.get(pid)
        if child is not None and child.is_dead():
            # It is another process that has this number now.
            self._bury(pid, child)
        watch = Watch(died)
        if not hasattr(os, "pidfd_open"):
            return watch
        try:
            with self._lock:
                self._join(watch, pid)
        except ProcessLookupError:
            died()
        except OSError:
            pass
        return watch

    def use(self, loop: Any) -> None:
        """The worker's loop; None: it has none."""
        with self._lock:
            self._loop = loop
            self._listen()

    def in_loop(self) -> bool:
        """Whether ``died`` is called in the worker's event loop."""
        return self._loop is not None

    def _join(self, watch: Watch, pid: int) -> None:
        child = self._by_pid.get(pid)
        if child is None:
            child = Child(pid)
            if self._deaths is None:
                self._deaths = select.epoll()
            self._deaths.register(child.fd, select.EPOLLIN)
            self._by_pid[pid] = child
            # Where a worker is part of another program, nobody says when it is ready.
            self._loop = self._loop or get_event_loop()
        child.runs.add(watch)
        watch.child = child
        self._listen()

    def _listen(self) -> None:
        if self._deaths is None:
            return
        if self._loop is not None:
            if self._deaths.fileno() not in self._loop.readers:
                self._loop.add_reader(self._deaths.fileno(), self._look, 0)
                # When the broker is lost, the loop begins anew and knows none of its files.
                self._loop.on_tick.add(self._listen)
        elif self._thread is None and self._by_pid:
            self._thread = threading.Thread(target=self._wait, daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        while True:
            self._look(None)
            with self._lock:
                if not self._by_pid:
                    self._thread = None
                    return

    def _look(self, timeout: float | None) -> None:
        dead = {fd for fd, _ in self._deaths.poll(timeout)}
        for pid, child in list(self._by_pid.items()):
            if child.fd in dead:
                self._bury(pid, child)

    def _bury(self, pid: int, child: Child) -> None:
        with self._lock:  # The thread that waits may be at it, too.
            fd, child.fd = child.fd, -1
            if fd < 0:
                return
            del self._by_pid[pid]
            # Not by its closing alone: what was forked since has it open, too.
            self._deaths.unregister(fd)
            os.close(fd)
        with suppress(KeyError):
            while True:
                child.runs.pop().died()


children = Children()


@worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    children.use(sender.hub)
