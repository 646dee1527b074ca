"""Leases that count only when enough replicas have them: Redis's WAIT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._values.arguments import LONGEST_TTL_SECONDS
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig

__all__ = ["REPLICAS_OPTION", "ReplicaWait", "Replicas"]

REPLICAS_OPTION = "REPLICAS"
"""the store's option: how many replicas must have a lease before it counts"""
REPLICA_WAIT_SECONDS = 1.0
"""how long the server waits for its replicas, at most; they mostly answer within a millisecond"""
WAIT_SHARE = 1 / 2
"""at most so much of a lease's ttl, and of the socket's timeout, is spent on that"""


class ReplicaWait:
    """A WAIT that is sent together with one script, and its answer."""

    __slots__ = ("acknowledged", "command", "needed", "seconds")

    def __init__(self, needed: int, ttl: float, socket_timeout: float | None) -> None:
        """``ttl`` of the lease and ``socket_timeout`` are in seconds; None: it has no limit."""
        limit = LONGEST_TTL_SECONDS if socket_timeout is None else socket_timeout
        self.needed = needed
        self.seconds = min(REPLICA_WAIT_SECONDS, WAIT_SHARE * ttl, WAIT_SHARE * limit)
        self.acknowledged = 0
        """how many replicas have what the script wrote"""
        # Never 0, which is for ever.
        words = (b"WAIT", b"%d" % needed, b"%d" % max(1, int(self.seconds * 1000)))
        self.command = b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)

    def answer(self, reply: Any) -> None:
        """Take the server's answer. Raises the error that it answered with."""
        if isinstance(reply, Exception):
            raise reply
        self.acknowledged = int(reply)

    @property
    def enough(self) -> bool:
        """Whether as many replicas have it as must."""
        return self.acknowledged >= self.needed

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} of {self.needed} replicas (REPLICAS) acknowledged it within "
            f"{self.seconds:g} s"
        )


class Replicas:
    """What a store asks of the server's replicas."""

    def __init__(self, settings: StoreSettings, new_connection: Callable[[], Any]) -> None:
        """``new_connection`` makes a connection as the scripts use them. Raises
        `InvalidLockConfig` for a wrong option."""
        given: Any = settings.options.get(REPLICAS_OPTION)
        if REPLICAS_OPTION in settings.options and (type(given) is not int or given < 1):
            raise InvalidLockConfig(
                f"the option {REPLICAS_OPTION} of the lock store {settings.alias!r} is a number "
                f"of replicas, 1 or more, not {given!r}"
            )
        self.needed: int = given or 0
        """how many must have a lease before it counts; 0: none"""
        self._socket_timeout = new_connection().socket_timeout if self.needed else None

    def wait(self, ttl_ms: int) -> ReplicaWait | None:
        """The WAIT to send with a script that grants or extends a lease for ``ttl_ms``
        milliseconds; None: no replica must have it."""
        if not self.needed:
            return None
        return ReplicaWait(self.needed, ttl_ms / 1000, self._socket_timeout)
