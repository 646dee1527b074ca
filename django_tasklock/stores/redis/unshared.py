"""Connections of which no forked child keeps a copy."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from ..._compat.redis import close_inherited, never_reconnect
from .server_client import ServerClient

__all__ = ["UnsharedConnections"]

_forks = 0
"""how often this process was forked"""


class UnsharedConnections:
    """Makes the connections on which a process listens."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._made: WeakSet[Any] = WeakSet()

    def connect(self) -> Any:
        """A connection that is never connected again by itself. Raises what redis-py raises."""
        while True:
            connection, forks = self._client.new_connection(health_check_interval=0), _forks
            self._made.add(connection)
            try:
                connection.connect()
            except BaseException:
                connection.disconnect()
                raise
            if forks == _forks:
                never_reconnect(connection)
                return connection
            # A child that was forked meanwhile may have a copy of the socket, unknown to it.
            connection.disconnect()

    def close_inherited(self) -> None:
        """In a forked child: close the parent's connections."""
        for connection in self._made:
            close_inherited(connection)
        self._made.clear()


def _before_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
