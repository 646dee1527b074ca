"""What time it is on ZooKeeper's leader, as far as this process knows."""

from __future__ import annotations

import time

from ..._values import clock

__all__ = ["ServerTime"]

MILLISECONDS_PER_SECOND = 1000.0
KNOWN_SECONDS = 600.0
"""for so long the time of the last write is gone by"""


class ServerTime:
    """The time stamp of this process's last write, and what has passed since.

    The time of a node's last change is by the leader's clock, and no request asks for that clock.
    It says how much is left of a lease or a note to those who look at it. No lease is ended by it.
    """

    def __init__(self) -> None:
        self._written: tuple[float, float] | None = None

    def learn(self, milliseconds: int) -> None:
        """A write of this process has just got this time stamp, in milliseconds since the epoch."""
        self._written = milliseconds / MILLISECONDS_PER_SECOND, clock.now()

    @property
    def known(self) -> bool:
        """Whether there was a write not long ago."""
        return self._written is not None and clock.now() - self._written[1] < KNOWN_SECONDS

    def since(self, milliseconds: int) -> float:
        """How many seconds ago the leader gave this time stamp, or a little less.

        Where no write of this process is known, by the clock of this host.
        """
        now = time.time()
        if self._written is not None:
            written, then = self._written
            now = written + clock.now() - then
        return max(0.0, now - milliseconds / MILLISECONDS_PER_SECOND)
