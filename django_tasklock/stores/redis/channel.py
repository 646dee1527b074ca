"""The channel on which a waiter is notified that the lock was handed to it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ..._values.tokens import new_token

__all__ = ["Channel"]


class Channel:
    """A channel of Redis, used by one waiter at a time, and kept for the next waiter."""

    __slots__ = ("cut", "id", "messages", "name", "news", "prefix", "subscribed", "waker", "wakeup")

    def __init__(self, prefix: bytes) -> None:
        self.id = new_token()
        self.prefix = prefix
        self.name = prefix + self.id.encode()
        self.messages: deque[bytes] = deque()
        self.subscribed = False
        self.cut = False
        self.news = False
        self.waker: Callable[[], None] | None = None
        """what wakes a waiter that does not listen itself"""
        # Not a threading.Event: that is Python code, and an exception from a signal handler inside
        # of it would leave its lock held for ever.
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    def notify(self) -> None:
        """Note that there is a message for the waiter, and wake it."""
        self.news = True
        self.wake()

    def wake(self) -> None:
        """Wake the waiter, now or when it next sleeps."""
        waker = self.waker
        if waker is not None:
            waker()
        if self.wakeup.locked():
            try:
                self.wakeup.release()
            except RuntimeError:
                pass  # Another thread has woken it at the same time.
