"""Notifications of PostgreSQL, by which waiters learn at once that a lock may be free.

They are hints and nothing more: a waiter that gets one looks sooner. Each process that waits has
one connection on which it listens, while it waits and for a short time after. Behind PgBouncer in
transaction mode LISTEN is accepted and nothing ever arrives. So a process that begins to listen
sends a notification to itself; if that does not come, its waiters poll, as on other databases.

That LISTEN stays behind on a session which PgBouncer gives to other connections, and theirs are the
notifications then: psycopg keeps them for ever. So the trial has a channel of its own, on which no
second notification is ever sent.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any

from ..._values import clock
from .overdue import shut_down
from .queue_statements import CHANNEL

__all__ = ["Notifications", "Wakeup"]

TRIAL_SECONDS = 5.0
"""within which the notification to itself must have come"""
ROUND_SECONDS = 1.0
"""how often the thread looks whether anybody still waits"""
LINGER_SECONDS = 10.0
"""for which the thread goes on listening when nobody waits"""
RETRY_SECONDS = 60.0
"""for which no further attempt is made after one that failed"""


class Wakeup:
    """What wakes a waiter; ``waker``, if the waiter does not wait for it in a thread."""

    waker: Callable[[], None] | None = None

    def __init__(self) -> None:
        # Not a threading.Event, which an exception from a signal handler may leave locked.
        self._clear = threading.Lock()
        self._clear.acquire()

    def is_set(self) -> bool:
        """Whether it was woken since it was cleared."""
        return not self._clear.locked()

    def clear(self) -> None:
        """Forget that it was woken."""
        self._clear.acquire(False)

    def wait(self, seconds: float) -> None:
        """Wait until it is woken."""
        if self._clear.acquire(timeout=seconds):
            with suppress(RuntimeError):  # It was woken once more meanwhile.
                self._clear.release()

    def set(self) -> None:
        """Wake the waiter."""
        with suppress(RuntimeError):  # It is awake already.
            self._clear.release()
        if self.waker is not None:
            self.waker()


class Notifications:
    """The notifications of one store in this process.

    Args:
        connect: makes a connection of Django's to the database, for any thread.
        notify: sends a notification on a channel, by another connection.
    """

    def __init__(self, connect: Callable[[], Any], notify: Callable[[str], object]) -> None:
        self._connect, self._notify = connect, notify
        self._begin()

    def _begin(self) -> None:
        self._waiters: dict[str, set[Wakeup]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._retry_at = 0.0
        self._last_used = 0.0
        self.arrive = False
        """Whether notifications arrive."""
        self._pid = os.getpid()

    def join(self, key: str, event: Wakeup) -> None:
        """Have the event set whenever the lock with this key may have become free."""
        if self._pid != os.getpid():
            self._begin()  # The thread and the connection are the parent's.
        with self._lock:
            self._waiters.setdefault(key, set()).add(event)
            if self._thread is None and clock.now() >= self._retry_at:
                self._thread = threading.Thread(
                    target=self._run, name="tasklock-notifications", daemon=True
                )
                self._thread.start()

    def leave(self, key: str, event: Wakeup) -> None:
        """The event is not needed any more."""
        with self._lock:
            events = self._waiters.get(key, set())
            events.discard(event)
            if not events:
                self._waiters.pop(key, None)
            self._last_used = clock.now()

    def close(self) -> None:
        """Close the connection: the thread ends, and waiters poll."""
        connection = self._connection
        if connection is not None and self._pid == os.getpid():
            shut_down(connection)

    def _run(self) -> None:
        wrapper, me = None, threading.current_thread()
        try:
            wrapper = self._connect()
            if _can_be_listened_on(wrapper.connection):
                self._connection = wrapper.connection
                if self._can_listen(wrapper):
                    self._listen(wrapper)
        except Exception:
            pass  # Nothing is lost but time: the waiters poll, and their calls report an outage.
        finally:
            with self._lock:
                if self._thread is me:  # It has not ended for want of waiters.
                    self._forget_thread()
                    self._retry_at = clock.now() + RETRY_SECONDS
            if wrapper is not None:
                with suppress(Exception):
                    wrapper.close()
            self._wake_all()

    def _can_listen(self, wrapper: Any) -> bool:
        """Whether a notification that is sent to this process arrives."""
        channel = f"{CHANNEL}_{token_hex(8)}"
        _execute(wrapper, f"LISTEN {channel}")
        self._notify(channel)
        arrived = any(wrapper.connection.notifies(timeout=TRIAL_SECONDS, stop_after=1))
        _execute(wrapper, f"UNLISTEN {channel}")
        return arrived

    def _listen(self, wrapper: Any) -> None:
        """Wake waiters until nobody waits any more."""
        _execute(wrapper, f"LISTEN {CHANNEL}")
        self.arrive = True
        self._wake_all()
        while True:
            for notification in wrapper.connection.notifies(timeout=ROUND_SECONDS):
                self._wake(notification.payload)
            with self._lock:
                if not self._waiters and clock.now() > self._last_used + LINGER_SECONDS:
                    self._forget_thread()  # Whoever joins from now on starts another one.
                    return

    def _forget_thread(self) -> None:
        self._thread, self._connection, self.arrive = None, None, False

    def _wake(self, key: str) -> None:
        with self._lock:
            for event in self._waiters.get(key, ()):
                event.set()

    def _wake_all(self) -> None:
        with self._lock:
            for events in self._waiters.values():
                for event in events:
                    event.set()


def _execute(wrapper: Any, sql: str) -> None:
    with wrapper.cursor() as cursor:
        cursor.execute(sql)


def _can_be_listened_on(connection: Any) -> bool:
    """psycopg 3.2 waits for notifications for a given time."""
    notifies = getattr(connection, "notifies", None)
    return callable(notifies) and "timeout" in inspect.signature(notifies).parameters
