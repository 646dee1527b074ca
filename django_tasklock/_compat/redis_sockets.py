"""The sockets of redis-py's connections that nobody closes."""

from __future__ import annotations

from typing import Any
from weakref import finalize

__all__ = ["connect"]

CLOSER = "_django_tasklock_closer"
"""the attribute of a connection for what closes its socket"""


def connect(connection: Any) -> None:
    """Connect, and have the socket closed when the garbage collector drops the connection.

    A connection closes its socket when it is finalized. Where it is dropped with a store, whose
    parts refer to each other, the collector sometimes finalizes the socket first. That warns of an
    unclosed socket, which is an error under ``-W error``. What a weak reference calls is called
    before anything is finalized.

    Uses ``Connection._sock``. Raises what redis-py raises.
    """
    connection.connect()
    before = getattr(connection, CLOSER, None)
    if before is not None:
        before.detach()
    closer = finalize(connection, connection._sock.close)
    closer.atexit = False
    setattr(connection, CLOSER, closer)
