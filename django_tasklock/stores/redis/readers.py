"""Which waiter of a process reads the subscriber's connection for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..._values import clock
from .channel import Channel

__all__ = ["Readers"]

READER_CHECK_SECONDS = 1.0
"""a sleeping waiter checks at this interval that some waiter reads: an exception from a signal
handler may have kept the last reader from waking another waiter"""


class Readers:
    """One waiter reads the connection, the others sleep.

    A thread of its own that reads for all would take a third more time for a hand-over to the only
    waiter of a process, and some 8 % more among several.

    An exception from a signal handler may come between any two instructions. So a role is given by
    one assignment, and the waiter that has the role gives it back itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: Channel | None = None
        self._asleep: dict[Channel, None] = {}

    def listen(
        self, channel: Channel, deadline: float, read: Callable[[Channel, float], None]
    ) -> None:
        """Return when the channel has news, or at the deadline (on `clock.now`).

        ``read(channel, deadline)`` reads the connection for all waiters. It returns when this
        channel has news, or at the deadline.
        """
        try:
            while not channel.news:
                left = deadline - clock.now()
                if left <= 0:
                    return
                with self._lock:
                    if self._reader is None:
                        self._reader = channel
                if self._reader is channel:
                    read(channel, deadline)
                else:
                    self._sleep(channel, left)
        finally:
            if self._reader is channel:
                self._reader = None
            channel.news = False
            self._pass_on()

    def reading(self) -> bool:
        """Whether a waiter reads now."""
        return self._reader is not None

    def _sleep(self, channel: Channel, seconds: float) -> None:
        """Sleep until there is news, or until no waiter reads any more."""
        try:
            self._asleep[channel] = None
            if self._reader is not None:
                channel.wakeup.acquire(timeout=min(seconds, READER_CHECK_SECONDS))
        finally:
            self._asleep.pop(channel, None)

    def _pass_on(self) -> None:
        # If no waiter reads any more, wake one that sleeps: it will read.
        if self._asleep and self._reader is None:
            for channel in list(self._asleep):
                if channel.wakeup.locked():
                    channel.wake()
                    return
