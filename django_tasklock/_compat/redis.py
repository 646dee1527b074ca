"""What redis-py and hiredis do not document, and we use.

Read in redis-py 8.1.0 and hiredis 3.5.0. The oldest releases that we support (see ``py310-lowest``
in pyproject.toml) have them too.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .redis_sockets import connect

__all__ = [
    "NO_SCRIPT",
    "PING",
    "NotSent",
    "answer_in",
    "arrives",
    "close_inherited",
    "connection_options",
    "exchange",
    "has_unread",
    "has_waiting_limit",
    "make_connection",
    "most_connections",
    "never_reconnect",
    "pack",
    "packed_command",
    "read_message",
    "send_subscribe",
    "send_unsubscribe",
    "unless_closed",
]

pack: Callable[[Any], Any] | None
try:
    # Not documented by redis-py, which uses it in the same way: ten times as fast as Python.
    from hiredis import pack_command as pack
except ImportError:  # redis-py packs in Python then.
    pack = None

T = TypeVar("T")

NO_SCRIPT = object()
"""the answer to an EVALSHA of a script that the server does not have"""
PING = b"*1\r\n$4\r\nPING\r\n"
"""sent before what is to be answered last: of its clients the server first writes to those for whom
it had nothing until the end"""


class NotSent(RedisConnectionError):
    """The server did not get the whole command, so it cannot have carried it out."""


def exchange(
    connection: Any,
    command: tuple[bytes, ...],
    number: bytes,
    before: bytes,
    meanwhile: Callable[[], object],
    again: bool,
    then: bytes = b"",
    on_reply: Callable[[Any], object] = bool,
) -> Any:
    """Send ``command``, whose last argument is ``number``, and return the answer.

    The arguments are those of `Connections.exchange`. ``before`` is a packed command that is sent
    first, and whose reply is ignored; ``then`` is one that is sent right behind, and ``on_reply``
    is called with its reply. With ``again`` the command is sent as often as the connection's own
    retry policy says. Uses ``Connection._sock``, ``pack_command``, ``check_health``,
    ``read_response`` and ``retry``: redis-py documents none of them. This is one function, because
    it runs twice for each lease, and another call would slow both down.

    Raises what redis-py raises, and `NotSent`.
    """
    if again and connection.retry.get_retries():
        return connection.retry.call_with_retry(
            lambda: exchange(connection, command, number, before, meanwhile, False, then, on_reply),
            lambda _: connection.disconnect(),
        )
    # What redis-py does as well, after a look at the type of each argument.
    packed = b"".join(connection.pack_command(*command)) if pack is None else pack(command)
    if then:
        packed += then
    try:
        if connection._sock is None:
            # redis-py would connect by itself, but a Sentinel's connection to the wrong server.
            connect(connection)
        if connection.health_check_interval:
            connection.check_health()
        # redis-py's own way is to look at four things before: a fiftieth of an uncontended call.
        connection._sock.sendall(before + packed if before else packed)
    except (RedisTimeoutError, TimeoutError):
        raise
    except (RedisConnectionError, OSError) as error:
        # A part was sent at most, and servers carry out whole commands.
        raise NotSent(str(error) or type(error).__name__) from error
    meanwhile()
    try:
        if before:
            with suppress(ResponseError):  # Whatever the answer is.
                connection.read_response()
        try:
            reply = connection.read_response()
        except NoScriptError:
            # A value, for there is nothing to be undone: the connection is as good as before.
            reply = NO_SCRIPT
        if then:
            on_reply(connection.read_response())
    except (InvalidResponse, ValueError) as error:
        # redis-py's parser in Python raises ValueError where it expects a number. What comes next
        # on this connection cannot be read either, but a new one may be sound.
        raise RedisConnectionError(f"The reply cannot be read: {error}") from error
    if reply is NO_SCRIPT:
        return reply
    return answer_in(reply, number)


def packed_command(connection: Any, command: tuple[bytes, ...]) -> bytes:
    """A command as it is sent. `exchange` has this once more, since a call would slow it down."""
    if pack is None:
        return b"".join(connection.pack_command(*command))
    data: bytes = pack(command)
    return data


def answer_in(reply: Any, number: bytes) -> Any:
    """The answer in a script's reply, whose last argument was ``number``; see `Script`.

    Raises ``ConnectionError`` if it is the reply to another command.
    """
    if type(reply) is bytes:
        if reply.startswith(number + b" "):
            return reply[len(number) + 1 :]
    elif type(reply) is list and len(reply) == 2 and reply[0] == number:
        return reply[1]
    raise RedisConnectionError("The reply belongs to another command")


# ---------------------------------------------------------------- connections and their pools


def connection_options(pool: Any) -> dict[str, Any]:
    """The arguments of the connections that ``pool`` makes (``connection_kwargs``).

    Without those named ``maint...`` and ``orig_...``: redis-py adds them for RESP3, in which
    servers send messages that no command has asked for, and does not document how to leave them
    out.
    """
    return {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not name.startswith(("maint", "orig_"))
    }


def make_connection(pool: Any, options: dict[str, Any]) -> Any:
    """A connection of the class that ``pool`` uses (``connection_class``), not connected yet.

    The class is how a pool knows TLS, unix sockets and Sentinels apart.
    """
    return pool.connection_class(**options)


def has_waiting_limit(pool: Any) -> bool:
    """Whether the connections that ``pool`` makes have a timeout for reads.

    The default differs between releases, so a connection is made (not connected) and asked.
    """
    return make_connection(pool, pool.connection_kwargs).socket_timeout is not None


def most_connections(pool: Any) -> tuple[int | None, float | None]:
    """How many connections ``pool`` makes, and for how many seconds it waits for a free one.

    None where the pool has no such limit: only a ``BlockingConnectionPool`` has a ``timeout``.
    """
    return getattr(pool, "max_connections", None), getattr(pool, "timeout", None)


def arrives(connection: Any, seconds: float) -> bool:
    """Whether something to read, or the end of the connection, arrives within ``seconds``.

    What was read and not yet parsed does not count, as it does in redis-py's ``can_read``, which
    makes three system calls where this makes one. Uses ``Connection._sock``.
    """
    socket = getattr(connection, "_sock", None)
    # There is no poll under eventlet, and TLS has a buffer of its own.
    if socket is None or hasattr(socket, "pending") or not hasattr(select, "poll"):
        return bool(connection.can_read(timeout=seconds))
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def close_inherited(connection: Any) -> None:
    """Close a forked child's end of a connection that its parent still uses.

    ``disconnect`` would shut the parent's end down too. Here the child's descriptor is replaced by
    /dev/null: nothing is sent, and an event loop that is shared with the parent notices nothing.
    Uses ``Connection._sock``.
    """
    socket = getattr(connection, "_sock", None)
    if socket is not None:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, socket.fileno(), inheritable=False)
            os.close(nowhere)


# ------------------------------------------------------------------- a connection that listens


def never_reconnect(connection: Any) -> None:
    """Make ``connection`` raise ``ConnectionError`` where redis-py would connect it again.

    redis-py connects by itself where it finds a connection closed. The new one would have no
    subscription, and another thread would read the replies. There is no option against that, so
    this replaces ``connect`` and ``connect_check_health`` of this one object.
    """
    connection.connect = connection.connect_check_health = _was_cut


def _was_cut(*_arguments: Any, **_options: Any) -> NoReturn:
    raise RedisConnectionError("the subscriber's connection was cut")


def send_subscribe(connection: Any, channel: bytes) -> None:
    """Ask for the messages of ``channel``. The documented ``PubSub`` reads in one thread only."""
    connection.send_command("SUBSCRIBE", channel)


def send_unsubscribe(connection: Any, channel: bytes) -> None:
    """End what `send_subscribe` has begun."""
    connection.send_command("UNSUBSCRIBE", channel)


def has_unread(connection: Any) -> bool:
    """Whether redis-py has read a message that nobody has asked for yet. Does not wait."""
    return bool(connection.can_read(timeout=0))


def read_message(connection: Any) -> Any:
    """The next message of a listening connection."""
    return connection.read_response()


def unless_closed(call: Callable[..., T], *arguments: Any) -> T:
    """What ``call`` returns. Raises ``ConnectionError`` if another thread closes the connection
    meanwhile, as redis-py does where it fails to send: its own calls raise anything then."""
    try:
        return call(*arguments)
    except (AttributeError, TypeError, ValueError) as error:
        raise RedisConnectionError("the subscriber's connection was closed") from error
    except InvalidResponse as error:
        raise RedisConnectionError(f"a message cannot be read: {error}") from error
