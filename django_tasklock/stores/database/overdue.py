"""Calls to the database that take too long are cut off.

PostgreSQL's drivers wait for an answer for as long as the connection lasts, and that may be hours
after the server stopped. A limit that the server keeps would not help then, and behind PgBouncer it
would stay behind on a connection that others use. So one thread for each process looks at the calls
under way, and shuts the connection down under those that are overdue: the driver raises an error.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from ..._compat import native_threads
from ..._values import clock

__all__ = ["Overdue", "shut_down"]

ROUND_SECONDS = 0.25
"""how often the thread looks"""
LAST_ROUNDS = 20
"""after so many rounds without a call the thread ends; the next call starts another one"""


class Overdue:
    """The calls under way in this process, and when each is overdue.

    Args:
        seconds: that a call may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[int, tuple[float, Any]] = {}
        self._lock = native_threads.new_lock()
        self._watched = False

    def begin(self, connection: Any) -> None:
        """A call begins on a driver's connection, which has a ``fileno``."""
        self._calls[id(connection)] = (clock.now() + self._seconds, connection)
        if not self._watched:
            with self._lock:
                start, self._watched = not self._watched, True
            if start:
                try:
                    native_threads.start_thread(self._watch)
                except BaseException:
                    self._watched = False  # The next call starts it.
                    raise

    def end(self, connection: Any) -> bool:
        """The call is over. Returns whether its connection was cut off."""
        if self._calls.pop(id(connection), None) is not None:
            return False
        with self._lock:  # It may be about to be cut off: until then its number is not free.
            return True

    def _watch(self) -> None:
        pause, idle = native_threads.new_lock(), 0
        pause.acquire()
        while True:
            pause.acquire(timeout=ROUND_SECONDS)
            now = clock.now()
            with self._lock:
                for key, (due, connection) in list(self._calls.items()):
                    if now > due and self._calls.pop(key, None) is not None:
                        shut_down(connection)
                idle = 0 if self._calls else idle + 1
                if idle > LAST_ROUNDS:
                    self._watched = False
                    if not self._calls:  # A call that began just now has not seen that it is False.
                        return
                    self._watched, idle = True, 0


def shut_down(connection: Any) -> None:
    """End a driver's connection under whoever waits for it: the driver raises an error there."""
    # Of a copy: closing this object must not close the driver's own descriptor.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)
