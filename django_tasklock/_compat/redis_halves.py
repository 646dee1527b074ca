"""An exchange with a Redis server in two halves: sending, and reading what has come.

Beside what `redis.exchange` uses of redis-py, this uses ``Connection._sock`` alone: the reply is
read from the socket by a parser of our own, so that a part of it can be read without waiting for
the rest. Read in redis-py 8.1.0 and hiredis 3.5.0.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from . import redis as plain

__all__ = ["FAILED", "NOT_ALL", "can_send", "read_reply", "reader", "send"]

hiredis: Any
try:
    import hiredis as _hiredis

    hiredis = _hiredis
except ImportError:  # redis-py parses in Python then, and there are no halves.
    hiredis = None

FAILED = object()
"""the answer when the server has answered with an error, NOSCRIPT among them"""
NOT_ALL = object()
"""the answer is not there yet, or only a part of it"""
READ_BYTES = 65536


def reader() -> Any:
    """A parser for one reply."""
    return hiredis.Reader(notEnoughData=NOT_ALL)


def can_send(connection: Any) -> bool:
    """Whether `send` and `read_reply` work with a connection.

    Not under TLS, whose socket has a buffer of its own; nor where redis-py would do something
    before the command: connect, or a health check; nor where the socket waits without a limit,
    because calls of the system would wait as well.
    """
    sock = connection._sock
    return (
        hiredis is not None
        and type(sock) is socket.socket
        and sock.gettimeout() is not None
        and not connection.health_check_interval
        and hasattr(select, "poll")
    )


def send(connection: Any, command: tuple[bytes, ...]) -> bool:
    """Send a command without waiting. False: the server has not got the whole of it, so it cannot
    have carried it out, and the connection is of no use any more."""
    packed = plain.packed_command(connection, command)
    try:
        # Python's own `socket.send` asks the system first whether it would have to wait.
        return os.write(connection._sock.fileno(), packed) == len(packed)
    except OSError:
        return False


def read_reply(connection: Any, reader: Any, number: bytes, *, wait: bool) -> Any:
    """The answer to a command that `send` has sent, and whose last argument is ``number``.

    Args:
        connection: on which it was sent.
        reader: what `reader` has made for it, the same one in each call.
        number: see `redis.exchange`.
        wait: for the rest of the reply, as long as the socket's timeout says.

    Returns:
        The answer, `FAILED`, or without ``wait`` `NOT_ALL`. The connection may be used for other
        commands only after one of the first two.

    Raises ``ConnectionError`` and ``TimeoutError`` of redis-py.
    """
    sock = connection._sock
    if sock is None:
        raise RedisConnectionError("the connection was closed")
    try:
        while (reply := reader.gets()) is NOT_ALL:
            data = sock.recv(READ_BYTES) if wait else os.read(sock.fileno(), READ_BYTES)
            if not data:
                raise RedisConnectionError("Connection closed by server.")
            reader.feed(data)
    except BlockingIOError:
        return NOT_ALL
    except TimeoutError as error:
        raise RedisTimeoutError("Timeout reading from socket") from error
    except OSError as error:
        raise RedisConnectionError(f"Error while reading from socket: {error}") from error
    except hiredis.HiredisError as error:
        raise RedisConnectionError(f"The reply cannot be read: {error}") from error
    if reader.has_data():
        raise RedisConnectionError("There is more than the reply")
    if isinstance(reply, hiredis.ReplyError):
        return FAILED
    return plain.answer_in(reply, number)
