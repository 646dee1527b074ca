"""Running scripts on the server of a cache: of django-redis, or of Django's own Redis backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.cache import caches

from ..._compat.redis_caches import picks_server_by_key, raw_client
from ..._values.arguments import checked_ttl
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig
from .decoding import decoder
from .script import ONE_COMMAND, Script
from .server_client import ReplyLost, ServerClient, as_bytes, milliseconds

__all__ = [
    "ONE_COMMAND",
    "SOCKET_TIMEOUT_OPTION",
    "Client",
    "ReplyLost",
    "Script",
    "as_bytes",
    "milliseconds",
    "timeouts",
]

SOCKET_TIMEOUT_OPTION = "SOCKET_TIMEOUT"
"""the store's option: how many seconds connect, send and read may take; None: no limit"""


class Client(ServerClient):
    """Runs scripts on a cache's server, on connections of our own, and uses the cache's serializer.

    Raises `InvalidLockConfig` for a cache whose client picks the server by the key, since a script
    needs all of its keys on one server; and for a wrong SOCKET_TIMEOUT.
    """

    def __init__(self, settings: StoreSettings) -> None:
        alias = settings.alias
        self.cache: Any = caches[settings.cache]
        self.encode: Callable[[Any], Any]
        self.decode: Callable[[bytes], Any]
        """decodes a value; raises any exception for most values that are no record"""
        if picks_server_by_key(self.cache):
            raise InvalidLockConfig(
                f"the lock store {alias!r} cannot use django-redis's ShardClient: its "
                "connection depends on the key, and a lock's keys must be on one server"
            )
        raw = raw_client(self.cache)
        if raw is None:
            raise InvalidLockConfig(
                f"the lock store {alias!r} needs a cache of django-redis, or Django's own "
                f"RedisCache; its CACHE {settings.cache!r} is a {type(self.cache).__name__}"
            )
        self.encode = raw.encode
        self.decode = decoder(raw.encode, raw.loads, raw.decompress)
        self.redis: Any = raw.redis
        super().__init__(alias, self.redis.connection_pool, timeouts(settings))
        self.new_connection()  # It connects to nothing, and raises for an option that is unknown.

    def make_key(self, key: str) -> str:
        """The key in Redis of a key of the cache."""
        made: str = self.cache.make_key(key)
        return made


def timeouts(settings: StoreSettings) -> dict[str, float | None]:
    """What the option SOCKET_TIMEOUT says, as overrides for `new_connection`. Raises
    `InvalidLockConfig` for a wrong value."""
    if SOCKET_TIMEOUT_OPTION not in settings.options:
        return {}
    limit = settings.options[SOCKET_TIMEOUT_OPTION]
    if limit is not None:
        try:
            limit = checked_ttl(limit)
        except (TypeError, ValueError) as error:
            raise InvalidLockConfig(
                f"the option {SOCKET_TIMEOUT_OPTION} of the lock store {settings.alias!r} is a "
                f"number of seconds, or None, not {limit!r}"
            ) from error
    return {"socket_timeout": limit, "socket_connect_timeout": limit}
