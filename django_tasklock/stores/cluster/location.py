"""The store's options: where the cluster is, and how its nodes are reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from redis import ConnectionPool

from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig
from ..redis.client import timeouts
from ..redis.connections import DEFAULT_SOCKET_TIMEOUT_SECONDS, new_connection

__all__ = ["LOCATION_OPTION", "POOL_OPTION", "Address", "Location"]

LOCATION_OPTION = "LOCATION"
"""the store's option: the URL of one node, or a list of URLs of some"""
POOL_OPTION = "CONNECTION_POOL_KWARGS"
"""the store's option: arguments of redis-py's connections, such as ``ssl_ca_certs``"""


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Location:
    """The nodes that the settings name, and how every node of the cluster is connected to."""

    def __init__(self, settings: StoreSettings) -> None:
        """Raises `InvalidLockConfig` for an option that is wrong. Asks no server."""
        self._alias = settings.alias
        given = settings.options.get(LOCATION_OPTION)
        urls = [given] if isinstance(given, str) else given
        if not urls or not isinstance(urls, list | tuple):
            raise self._wrong(
                LOCATION_OPTION, "the URL of a node of the cluster, or a list of such"
            )
        kwargs = settings.options.get(POOL_OPTION, {})
        if not isinstance(kwargs, Mapping):
            raise self._wrong(POOL_OPTION, "a dict of arguments for redis-py's connections")
        split = [self._checked(url) for url in urls]
        first = self._first = split[0]
        # Releases of redis-py before version 8 have no timeout.
        self._kwargs = {"socket_timeout": DEFAULT_SOCKET_TIMEOUT_SECONDS, **kwargs}
        if first.username:
            self._kwargs["username"] = unquote(first.username)
        if first.password:
            self._kwargs["password"] = unquote(first.password)
        if any(
            (url.scheme, url.username, url.password, url.query)
            != (first.scheme, first.username, first.password, first.query)
            for url in split
        ):
            raise self._wrong(
                LOCATION_OPTION,
                "a list of URLs with the same scheme, user, password and query: all nodes of the "
                "cluster are connected to in one way",
            )
        self.seeds = tuple(Address(url.hostname or "", url.port or 6379) for url in split)
        self.timeouts = timeouts(settings)
        try:
            connection = new_connection(self.pool(self.seeds[0]), **self.timeouts)
        except (TypeError, ValueError, OSError) as error:
            raise self._wrong(
                POOL_OPTION, f"arguments of redis-py's connections: {error}"
            ) from error
        self.patience: float = connection.socket_timeout or DEFAULT_SOCKET_TIMEOUT_SECONDS
        """how many seconds a call goes on while the cluster changes or does not answer"""

    def pool(self, address: Address) -> Any:
        """A pool with the options of the connections to a node; it connects to nothing itself."""
        url = urlunsplit((self._first.scheme, str(address), "", self._first.query, ""))
        return ConnectionPool.from_url(url, **self._kwargs)

    def _checked(self, url: Any) -> SplitResult:
        try:
            split: SplitResult = urlsplit(url)
            fits = split.scheme in ("redis", "rediss") and bool(split.hostname)
            fits = fits and (split.port is None or split.port > 0)
        except (ValueError, TypeError, AttributeError):
            fits = False
        if not fits:
            raise self._wrong(
                LOCATION_OPTION,
                "made of URLs such as redis://host:7000 or rediss://user:password@host:7000",
            )
        if split.path.strip("/") not in ("", "0"):
            raise self._wrong(
                LOCATION_OPTION, "made of URLs without a database: a cluster has none but 0"
            )
        return split

    def _wrong(self, option: str, what: str) -> InvalidLockConfig:
        # Without the value, which may have a password in it.
        return InvalidLockConfig(f"the option {option} of the lock store {self._alias!r} is {what}")
