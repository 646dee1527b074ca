"""One connection to Redis: how it is made, what is said on it, how it is closed."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

pack: Callable[[Any], Any] | None
try:
    from hiredis import pack_command as pack
except ImportError:  # redis-py packs in Python then.
    pack = None

__all__ = [
    "NO_SCRIPT",
    "NotSent",
    "arrives",
    "close_inherited",
    "exchange",
    "is_cut",
    "new_connection",
    "waits_for_ever",
]

SOCKET_TIMEOUT = 5.0
"""seconds for which a server may keep us waiting, to connect, to send or to read, where neither the
cache nor the store has a limit: without one a server that hangs would hang every caller for ever.
No script takes a hundredth of it, and later releases of redis-py have the same default."""
NO_SCRIPT = object()
"""the answer to an EVALSHA of a script that the server does not have"""
PING = b"*1\r\n$4\r\nPING\r\n"
"""sent before what is to be answered last: of its clients the server first writes to those for whom
it had nothing until the end"""


class NotSent(RedisConnectionError):
    """The server did not get the whole command, so it cannot have carried it out."""


def new_connection(pool: Any, **overrides: Any) -> Any:
    """A connection as ``pool`` makes them, not connected yet; on it come only replies.

    Timeouts are the cache's; `SOCKET_TIMEOUT`, where it has none. ``overrides`` are arguments of
    redis-py's ``Connection``.
    """
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        # For connections of the pool, in the protocol in which servers speak unasked.
        if not name.startswith(("maint", "orig_"))
    }
    options |= {"protocol": 2, "decode_responses": False}
    options["socket_timeout"] = options.get("socket_timeout") or SOCKET_TIMEOUT
    options["socket_connect_timeout"] = (
        options.get("socket_connect_timeout") or options["socket_timeout"]
    )
    if options.get("db"):
        # An integer would be packed by hiredis: see `as_bytes` in client.py.
        options["db"] = str(options["db"])
    return pool.connection_class(**options | overrides)


def waits_for_ever(pool: Any) -> bool:
    """Whether the connections of ``pool`` itself have no limit for a server that hangs."""
    connection = pool.connection_class(**pool.connection_kwargs)
    return connection.socket_timeout is None


def arrives(connection: Any, seconds: float) -> bool:
    """Whether something to read, or the end of the connection, comes off the wire in time.

    What was read and not yet parsed does not count, as it does in redis-py's ``can_read``, which
    asks the system three times where this asks once.
    """
    socket = getattr(connection, "_sock", None)
    # There is no poll under eventlet, and TLS has a buffer of its own.
    if socket is None or hasattr(socket, "pending") or not hasattr(select, "poll"):
        return bool(connection.can_read(timeout=seconds))
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def close_inherited(connection: Any) -> None:
    """Close a forked child's end of a connection that its parent goes on to use.

    Its descriptor leads nowhere from now on: nothing is sent, and an event loop that may be shared
    with the parent is not told.
    """
    socket = getattr(connection, "_sock", None)
    if socket is not None:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, socket.fileno(), inheritable=False)
            os.close(nowhere)


def is_cut(connection: Any) -> bool:
    """Whether the server has closed the connection, or has said what nobody waits for."""
    try:
        return arrives(connection, 0)
    except (RedisError, OSError, ValueError):
        return True


def exchange(
    connection: Any,
    command: tuple[bytes, ...],
    number: bytes,
    last: bool,
    meanwhile: Callable[[], object],
) -> Any:
    """The answer to ``command``, whose last argument is ``number``; see `Connections.exchange`."""
    # What redis-py does as well, after a look at the type of each argument.
    packed = b"".join(connection.pack_command(*command)) if pack is None else pack(command)
    try:
        if connection._sock is None:
            # redis-py would connect by itself, but a Sentinel's connection to the wrong server.
            connection.connect()
        if connection.health_check_interval:
            connection.check_health()
        # redis-py's own way is to look at four things before: a fiftieth of an uncontended call.
        connection._sock.sendall(PING + packed if last else packed)
    except (RedisTimeoutError, TimeoutError):
        raise
    except (RedisConnectionError, OSError) as error:
        # A part was sent at most, and servers carry out whole commands.
        raise NotSent(str(error) or type(error).__name__) from error
    meanwhile()
    if last:
        with suppress(ResponseError):  # Whatever the answer is.
            connection.read_response()
    try:
        reply = connection.read_response()
    except NoScriptError:
        # A value, for there is nothing to be undone: the connection is as good as before.
        return NO_SCRIPT
    if type(reply) is list and len(reply) == 2 and reply[0] == number:
        return reply[1]
    raise RedisConnectionError("The reply belongs to another command")
