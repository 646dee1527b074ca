"""One connection to Redis: making it, sending a command, closing it."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from ..._compat.redis import arrives, connection_options, make_connection

__all__ = ["has_no_timeout", "is_cut", "new_connection"]

DEFAULT_SOCKET_TIMEOUT_SECONDS = 5.0
"""the limit for connect, send and read where neither the cache nor the store has one: otherwise a
server that hangs would hang every caller for ever. No script takes a hundredth of it, and later
releases of redis-py have the same default."""


def new_connection(pool: Any, **overrides: Any) -> Any:
    """A connection with the options of ``pool``, not connected yet.

    The server sends replies on it and nothing else. Its timeouts are the cache's, or
    `DEFAULT_SOCKET_TIMEOUT_SECONDS` where the cache has none. ``overrides`` are arguments of
    redis-py's ``Connection``.
    """
    options = connection_options(pool)
    options |= {"protocol": 2, "decode_responses": False}
    options["socket_timeout"] = options.get("socket_timeout") or DEFAULT_SOCKET_TIMEOUT_SECONDS
    options["socket_connect_timeout"] = (
        options.get("socket_connect_timeout") or options["socket_timeout"]
    )
    if options.get("db"):
        # Not as an integer: see `as_bytes` in client.py.
        options["db"] = str(options["db"])
    return make_connection(pool, options | overrides)


def has_no_timeout(pool: Any) -> bool:
    """Whether the connections of ``pool`` itself have no socket timeout.

    The default differs between releases, so a connection is made (not connected) and asked.
    """
    return make_connection(pool, connection_options(pool)).socket_timeout is None


def is_cut(connection: Any) -> bool:
    """Whether the server has closed the idle connection, or has sent something unexpected."""
    try:
        return arrives(connection, 0)
    except (RedisError, OSError, ValueError):
        return True
