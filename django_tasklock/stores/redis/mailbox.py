"""Where a waiter is told that the lock is its own."""

from __future__ import annotations

import threading
from collections import deque

from ...lease import new_token

__all__ = ["Mailbox"]


class Mailbox:
    """A channel of its own, for one waiter at a time; kept for the next one."""

    __slots__ = ("bell", "channel", "cut", "id", "letters", "news", "subscribed")

    def __init__(self, prefix: bytes) -> None:
        self.id = new_token()
        self.channel = prefix + self.id.encode()
        self.letters: deque[bytes] = deque()
        self.subscribed = False
        self.cut = False
        self.news = False
        # Not an Event, which is Python inside: interrupted there, it would stay locked for ever.
        self.bell = threading.Lock()
        self.bell.acquire()

    def tell(self) -> None:
        """There is news for the waiter."""
        self.news = True
        self.ring()

    def ring(self) -> None:
        """Wake the waiter, now or as soon as it sleeps."""
        if self.bell.locked():
            try:
                self.bell.release()
            except RuntimeError:
                pass  # It rang in between.
