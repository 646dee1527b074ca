"""What redis-py does not document, and the store on a Redis Cluster uses.

Read in redis-py 8.1.0. The oldest release that we support has it too. redis-py's own client of a
cluster is not used: it keeps a pool for each node, sends again what may not be sent twice, and its
``PubSub`` for shards reads in one thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import AskError, InvalidResponse, MovedError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from . import redis as plain
from .redis_sockets import connect

__all__ = [
    "ASKING",
    "Redirection",
    "exchange_many",
    "redirection",
    "send_shard_subscribe",
    "send_shard_unsubscribe",
]

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""sent before a command to a node that is about to get the command's slot"""


class Redirection(NamedTuple):
    """What a MOVED or an ASK says."""

    slot: int
    host: str
    """empty: the host of the node that said it"""
    port: int


def redirection(error: MovedError | AskError) -> Redirection:
    """The parts of a redirection. Uses ``slot_id``, ``host`` and ``port``."""
    return Redirection(int(error.slot_id), str(error.host), int(error.port))


def exchange_many(connection: Any, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
    """`redis.exchange` for several commands in one round trip.

    The last argument of each command is its number. Returns for each the answer, `NO_SCRIPT`, or
    the ``ResponseError`` that the server answered with. Raises what redis-py raises, and `NotSent`.
    Uses what `redis.exchange` uses.
    """
    packed = b"".join(plain.packed_command(connection, command) for command in commands)
    try:
        if connection._sock is None:
            connect(connection)
        if connection.health_check_interval:
            connection.check_health()
        connection._sock.sendall(packed)
    except (RedisTimeoutError, TimeoutError):
        raise
    except (RedisConnectionError, OSError) as error:
        # The caller sends all of them again or none.
        raise plain.NotSent(str(error) or type(error).__name__) from error
    replies: list[Any] = []
    for command in commands:
        try:
            reply = connection.read_response()
        except NoScriptError:
            replies.append(plain.NO_SCRIPT)
        except ResponseError as error:
            replies.append(error)
        except (InvalidResponse, ValueError) as error:
            raise RedisConnectionError(f"The reply cannot be read: {error}") from error
        else:
            replies.append(plain.answer_in(reply, command[-1]))
    return replies


def send_shard_subscribe(connection: Any, channel: bytes) -> None:
    """Ask for the messages of a channel of the shard. redis-py's ``PubSub`` reads in one thread
    only."""
    connection.send_command("SSUBSCRIBE", channel)


def send_shard_unsubscribe(connection: Any, channel: bytes) -> None:
    """End what `send_shard_subscribe` has begun."""
    connection.send_command("SUNSUBSCRIBE", channel)
