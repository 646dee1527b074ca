"""The thread that reads the subscriber's connection for waiters that do not listen themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..._values import clock
from .channel import Channel

__all__ = ["Listener"]

ROUND_SECONDS = 1.0
"""how often the thread looks whether anybody still needs it"""
AFTER_ERROR_SECONDS = 0.05


class Listener:
    """One thread, for as long as it is needed.

    It is one more reader among the waiters: see `Readers`. Its own channel gets no message, so it
    reads until its round is over. A waiter in a thread of its own may read instead.

    Args:
        listen: ``listen(channel, deadline)`` reads for all until the deadline.
    """

    def __init__(self, listen: Callable[[Channel, float], None]) -> None:
        self._listen = listen
        self._guard = threading.Lock()
        self._needed: set[Channel] = set()
        self._runs = False

    def add(self, channel: Channel) -> None:
        """Listen for this channel. Raises `RuntimeError` if the system starts no thread."""
        with self._guard:
            self._needed.add(channel)
            if not self._runs:
                threading.Thread(target=self._run, name="tasklock-listener", daemon=True).start()
                self._runs = True

    def remove(self, channel: Channel) -> None:
        """Listen for it no more."""
        with self._guard:
            self._needed.discard(channel)

    def _run(self) -> None:
        own = Channel(b"")
        while True:
            with self._guard:
                if not self._needed:
                    self._runs = False
                    return
            try:
                self._listen(own, clock.now() + ROUND_SECONDS)
            except Exception:
                # The server refused something: the waiters were told, and their own calls say so.
                time.sleep(AFTER_ERROR_SECONDS)
            own.cut = False
