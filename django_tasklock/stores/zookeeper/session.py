"""For how long a ZooKeeper session surely lasts, as its client can know it."""

from __future__ import annotations

import math

from ..._values import clock

__all__ = ["HEARTBEAT_SHARE", "Session"]

HEARTBEAT_SHARE = 1 / 6
"""a heartbeat is sent after this share of the session timeout"""


class Session:
    """One session. Its end deletes its nodes, and so ends its leases.

    The leader ends a session once it has heard nothing of it for the session timeout. A client that
    is cut off learns of that only when it is connected again, and until then somebody else may hold
    its locks. So a lease counts as lost as soon as the session may be over by this process's clock.

    An answer proves that the leader heard of the session only if the leader took part in it: a
    server that has lost the leader goes on answering reads for some seconds. Heartbeats are syncs,
    which the leader answers. Which sessions are alive, the other servers tell the leader every half
    a tick, and a session timeout is two ticks or more: so when a heartbeat is answered, the leader
    knows of the one before. The session lasts from when that one was sent.
    """

    __slots__ = ("_before", "_lasts_from", "lost", "timeout")

    def __init__(self) -> None:
        self.lost = False
        """whether the client knows that the session is over"""
        self.timeout = 0.0
        self._before = self._lasts_from = -math.inf

    def connected(self, sent: float, timeout: float) -> None:
        """A server has made or resumed the session, after it was asked at ``sent``."""
        # The leader took part in that, whatever the server.
        self.timeout = timeout
        self._before = self._lasts_from = max(sent, self._lasts_from)

    def answered(self, sent: float) -> None:
        """A heartbeat that was sent at this moment is answered."""
        if sent > self._before:
            self._lasts_from, self._before = self._before, sent

    def left(self) -> float:
        """0.0 once the session may be over, and without end before: see `Grant.left`."""
        return math.inf if self.seconds() > 0 else 0.0

    def seconds(self) -> float:
        """Seconds for which the session surely lasts, if nothing more is heard."""
        return 0.0 if self.lost else self._lasts_from + self.timeout - clock.now()
