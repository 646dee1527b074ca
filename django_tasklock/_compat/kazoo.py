"""What kazoo does not document and `ZooKeeperStore` uses.

* kazoo cannot create container nodes, which the server deletes once they are empty. The request is
  that of `Create2` under another number (OpCode.createContainer of ZooKeeper 3.5), and it is sent
  by the client's ``_call``, as kazoo's own requests are.
* kazoo asks the server for a session timeout, and keeps the one that it gets to itself. Whoever
  must know when a session may be over needs that one: the server may grant a shorter one.

Read in kazoo 2.11.0 and 2.10.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import Create2

__all__ = ["CreateContainer", "create_container_async", "on_connected"]

CONTAINER = 4  # the flag of CreateMode.CONTAINER


class CreateContainer(Create2):  # type: ignore[misc]
    """The request to create a container node."""

    type = 19  # OpCode.createContainer


def create_container_async(client: Any, path: str, acl: Any) -> Any:
    """Create a container node. Returns kazoo's result object, for the path and the stat."""
    result = client.handler.async_result()
    client._call(CreateContainer(_prefix_root(client.chroot, path), b"", acl, CONTAINER), result)
    return result


def on_connected(
    client: Any, now: Callable[[], float], connected: Callable[[float, float], None]
) -> None:
    """Call ``connected(sent, timeout)`` in the client's own thread after each connecting.

    ``sent`` is a moment before the server was asked for the session, on the clock ``now``.
    ``timeout`` is the session timeout that it granted, in seconds.
    """
    connection = client._connection
    connect = connection._connect

    def _connect(*address: Any) -> tuple[float, float]:
        sent = now()
        read_milliseconds, connect_milliseconds = connect(*address)
        # The read timeout is two thirds of the session's.
        connected(sent, read_milliseconds * 1.5 / 1000.0)
        return read_milliseconds, connect_milliseconds

    connection._connect = _connect
