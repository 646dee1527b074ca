"""Leases that count only when enough replicas have them: Redis's WAIT."""

from __future__ import annotations

from typing import Any

from ..._values.arguments import LONGEST_TTL_SECONDS
from ...conf import StoreSettings

# The store's option: how many replicas must have a lease before it counts.
REPLICAS_OPTION = "REPLICAS"
# How long the server waits for its replicas, at most; they mostly answer within a millisecond.
REPLICA_WAIT_SECONDS = 1.0
# At most so much of a lease's ttl, and of the socket's timeout, is spent on that.
WAIT_SHARE = 1 / 2


class ReplicaWait:
    """A WAIT that is sent together with one script, and its answer."""

    def __init__(self, needed: int, seconds: float) -> None:
        self.needed, self.seconds = needed, seconds
        # The command. Its time is never 0, which is for ever.
        self.words = b"WAIT", b"%d" % needed, b"%d" % max(1, int(seconds * 1000))
        # How many replicas have what the script wrote; an error where the server refused.
        self.answer: Any = 0

    @property
    def enough(self) -> bool:
        """Whether as many replicas have it as must."""
        return type(self.answer) is int and self.answer >= self.needed

    def __str__(self) -> str:
        if type(self.answer) is not int:
            return str(self.answer)
        return (
            f"{self.answer} of {self.needed} replicas (REPLICAS) acknowledged it within "
            f"{self.seconds:g} s"
        )


class Replicas:
    """What a store asks of the server's replicas."""

    def __init__(self, settings: StoreSettings, socket_timeout: float | None) -> None:
        """``socket_timeout``: of a connection, in seconds; None: it has none. Raises
        `InvalidLockConfig` for a wrong option."""
        # How many must have a lease before it counts.
        self.needed: int = settings.option(
            REPLICAS_OPTION, 0, lambda given: type(given) is int and given >= 0, "a number >= 0"
        )
        self._limit = LONGEST_TTL_SECONDS if socket_timeout is None else socket_timeout

    def wait(self, ttl: float) -> ReplicaWait | None:
        """The WAIT to send with a script that writes a lease for ``ttl`` seconds; None: no replica
        must have it."""
        if not self.needed:
            return None
        limit = min(self._limit, ttl)
        return ReplicaWait(self.needed, min(REPLICA_WAIT_SECONDS, WAIT_SHARE * limit))
