"""What redis-py, and the caches that use it, do not document, and we use.

redis-py documents its clients, and not the connections below them. A client takes a connection out
of a pool, which an exception from a signal handler loses, and sends again what may not be sent
twice; its ``PubSub`` reads in one thread only; its client of a cluster does all three. So the
stores have connections of their own, and this module is all that knows how they work.

Read in redis-py 8.1.0, django-redis 7.0.0, django-valkey 0.4.1 and Django 5.2.19. The oldest
releases that we support (see ``py310-lowest`` in pyproject.toml) have it too.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import redis
from django.core.cache.backends.base import BaseCache, default_key_func
from redis.exceptions import AuthenticationError, InvalidResponse, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

# Arguments of connections whose values are classes of valkey-py.
VALKEY_OPTIONS = frozenset({"parser_class", "retry", "credential_provider"})


class NotSent(RedisConnectionError):
    """The server did not get the whole of what was sent, so it cannot have carried it out."""


def pack(words: tuple[bytes, ...]) -> bytes:
    """A command as it is sent."""
    parts = [part for word in words for part in (len(word), word)]
    return (b"*%d\r\n" + b"$%d\r\n%b\r\n" * len(words)) % (len(words), *parts)


def connect(connection: Any) -> None:
    """Connect, unless it is connected. Raises what redis-py raises, and `NotSent`.

    To be called before `send`, in which redis-py would connect by itself, but a Sentinel's
    connection to the wrong server.
    """
    try:
        connection.connect()
    except AuthenticationError as error:
        # For redis-py a lost connection. But the server has answered: to ask again is of no use.
        raise ResponseError(str(error)) from error
    except RedisConnectionError as error:
        raise NotSent(str(error)) from error


def send(connection: Any, packed: bytes) -> None:
    """Send packed commands (``send_packed_command``). Raises as `connect`."""
    try:
        connection.send_packed_command([packed])
    except RedisConnectionError as error:
        # A part was sent at most, and servers carry out whole commands.
        raise NotSent(str(error)) from error


def read(connection: Any) -> Any:
    """The reply to the next command that was sent (``read_response``).

    For a command that the server refused it is a ``ResponseError``: the connection is as good as
    before. Raises what redis-py raises.
    """
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
    except (InvalidResponse, ValueError) as error:
        # redis-py's parser in Python raises ValueError where it expects a number. What comes next
        # on this connection cannot be read either, but a new one may be sound.
        raise RedisConnectionError(f"The reply cannot be read: {error}") from error


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


def arrives(connection: Any, seconds: float) -> bool:
    """Whether something to read, or the end of the connection, arrives within ``seconds``
    (``can_read``). Raises what redis-py raises, where the connection was closed."""
    return bool(connection.can_read(timeout=seconds))


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


def next_message(connection: Any, seconds: float) -> Any:
    """The next message of a listening connection; None: none arrives within ``seconds``.

    redis-py 6 takes a signal handler's ``TimeoutError`` for the end of that time. So here the
    kernel is waited for without it, which ``_sock`` allows. Raises ``ConnectionError`` also if
    another thread closes the connection meanwhile, as redis-py does where it fails to send: its own
    calls raise anything then.
    """
    try:
        has_poll = hasattr(select, "poll")  # Not under eventlet.
        there = arrives(connection, 0 if has_poll else seconds)
        if not there and has_poll:
            poll = select.poll()
            poll.register(connection._sock, select.POLLIN)
            there = bool(poll.poll(seconds * 1000))
        return connection.read_response() if there else None
    except (AttributeError, TypeError, ValueError) as error:
        raise RedisConnectionError("the subscriber's connection was closed") from error
    except InvalidResponse as error:
        raise RedisConnectionError(f"a message cannot be read: {error}") from error


# ---------------------------------------------------------------------- caches on Redis


class RawCache(NamedTuple):
    """How a cache reaches Redis, makes its keys, and writes a text.

    ``pool`` is of redis-py, and None if a key may have a server of its own, as with the
    ShardClient. ``dumps`` makes what the cache would write for a text, but not compressed: a cache
    reads that too. ``prepends``: ``make_key`` puts the same text before each key, as Django's own.
    """

    pool: Any
    dumps: Callable[[str], Any]
    make_key: Callable[[str], str]
    prepends: bool


def raw_cache(cache: Any) -> RawCache | None:
    """A cache of django-redis or django-valkey, or Django's ``RedisCache``; None for any other.

    Neither documents how to write a value as the cache does without storing it. Uses ``client`` and
    ``_serializer`` of django-redis, ``_cache`` and ``_serializer`` of Django, ``key_func`` of both.
    """
    own, client = getattr(cache, "client", None), None
    if own is not None:
        dumps = own._serializer.dumps
        # By its name: a site's subclass counts.
        if not any(base.__name__ == "ShardClient" for base in type(own).__mro__):
            client = own.get_client(write=True)
    else:
        own = getattr(cache, "_cache", None)
        if own is None or not hasattr(own, "get_client"):
            return None
        client, dumps = own.get_client(None, write=True), own._serializer.dumps
    prepends = type(cache).make_key is BaseCache.make_key and cache.key_func is default_key_func
    pool = client and _pool_of_redis_py(client.connection_pool)
    return RawCache(pool, dumps, cache.make_key, prepends)


def _pool_of_redis_py(pool: Any) -> Any:
    """The pool, or one of redis-py that connects as a pool of valkey-py does: valkey-py is redis-py
    under other names, but its errors are others. It connects to nothing. None for Sentinels."""
    kind = pool.connection_class
    if kind.__module__.partition(".")[0] != "valkey":
        return pool
    ours = getattr(redis.connection, kind.__name__, None)
    if ours is None:
        return None
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not type(value).__module__.startswith("valkey") and name not in VALKEY_OPTIONS
    }
    return redis.ConnectionPool(ours, pool.max_connections, **options)
