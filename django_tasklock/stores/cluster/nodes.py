"""Which node of a cluster has which slot, and how the nodes are reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from redis import ConnectionPool
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from ..._compat.native_threads import this_thread
from ..._values import clock
from ..._values.tokens import chance
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig, StoreUnavailable
from ..redis.caches import timeouts
from ..redis.connections import DEFAULT_SOCKET_TIMEOUT_SECONDS, Client, MayHaveRun

__all__ = ["LOCATION_OPTION", "POOL_OPTION", "Address", "Nodes", "SlotClient"]

T = TypeVar("T")

# The store's option: the URL of a node, or a list of URLs of some.
LOCATION_OPTION = "LOCATION"
# The store's option: arguments of redis-py's connections, such as ``ssl_ca_certs``.
POOL_OPTION = "CONNECTION_POOL_KWARGS"
# For so long the renewal thread asks again while the cluster changes: leases at other nodes are due
# as well, and it comes back to these.
RENEWAL_PATIENCE_SECONDS = 0.5
# What nodes answer while a slot moves, has moved, or is served by nobody. Nothing was done then.
# (A `MovedError` is an `AskError`.)
ELSEWHERE = (AskError, TryAgainError, ClusterDownError)
# Of these answers, the others stay as they are. (The second is a `RedisConnectionError`.)
REFUSED = (ResponseError, AuthenticationError)
PAUSE_SECONDS = 0.01, 0.05

# The host and the port of a node.
Address = tuple[str, int]


class Nodes:
    """The masters of a cluster.

    redis-py's ``RedisCluster`` is not used. It puts a connection back with an unread reply on it if
    a call is interrupted, and sends again what must not be made twice.

    What is known is in dicts that are replaced as a whole, so threads, interruptions and forks find
    the old or the new one, and no lock.
    """

    def __init__(self, settings: StoreSettings, slots: Sequence[int]) -> None:
        """``slots``: those that the store uses. Raises `InvalidLockConfig` for a wrong option. Asks
        no server."""
        self.alias, self.slots = settings.alias, slots
        given = settings.options.get(LOCATION_OPTION)
        urls: Any = [given] if isinstance(given, str) else given
        self._seeds = _seeds(self.alias, urls)
        self.options: dict[str, Any] = timeouts(settings)
        self.masters: Mapping[int, Address] = {}
        """which master has each slot, as far as that is known"""
        self._clients: dict[Address, Client] = {}
        # When a node last did not know, or did not answer.
        self._failed: dict[Address, float] = {}
        self._said_by = self._seeds[0]
        # Releases of redis-py before version 8 have no timeout.
        default = {"socket_timeout": DEFAULT_SOCKET_TIMEOUT_SECONDS}
        try:
            kwargs = default | settings.options.get(POOL_OPTION, {})
            self.pool = ConnectionPool.from_url(urls[0], **kwargs)
            connection = self._client(self._seeds[0]).new_connection()
        except (TypeError, ValueError, OSError) as error:
            what = f"a dict of arguments for redis-py's connections: {error}"
            raise _wrong(self.alias, POOL_OPTION, what) from error
        self._patience: float = connection.socket_timeout or DEFAULT_SOCKET_TIMEOUT_SECONDS

    def ask(self, slot: int, question: Callable[[Client], T]) -> T:
        """What ``question`` returns for the client of the node that has a slot.

        While the cluster changes it is asked again, for about the socket's timeout. Raises
        `StoreUnavailable`.
        """
        patience = RENEWAL_PATIENCE_SECONDS if this_thread.renews else self._patience
        give_up = clock.now() + min(patience, self._patience)
        while True:
            try:
                return question(self._node(slot))
            except StoreUnavailable as error:
                cause = error.__cause__
                if isinstance(cause, REFUSED) and not isinstance(cause, ELSEWHERE):
                    raise
                self._forget(slot)
                # Not after a timeout: that node may hang for long, and the time is over.
                again = isinstance(cause, (*ELSEWHERE, RedisConnectionError))
                if clock.now() >= give_up or not again or isinstance(error, MayHaveRun):
                    raise
            time.sleep(chance.uniform(*PAUSE_SECONDS))

    def _node(self, slot: int) -> Client:
        masters = self.masters or self.learned()
        if slot not in masters:
            error = f"no node of the cluster serves the slot {slot}"
            raise StoreUnavailable(self.alias, error) from ClusterDownError(error)
        return self._client(masters[slot])

    def learned(self) -> Mapping[int, Address]:
        """Which master has each slot, as one node says: those that have failed are asked last.

        Raises `StoreUnavailable`, after the socket's timeout and at most as long once more.
        """
        give_up = clock.now() + self._patience
        known = {*self._seeds, *self._clients}
        for address in sorted(known, key=lambda each: self._failed.get(each, 0.0)):
            try:
                ranges = self._client(address).command("CLUSTER", "SLOTS")
            except StoreUnavailable as error:
                self._failed[address], failure = clock.now(), error
                if clock.now() >= give_up:
                    break
                continue
            masters: dict[int, Address] = {}
            for first, last, (host, port, *_), *_ in ranges:
                # Without a host it is the one that was asked.
                master = (host or b"").decode() or address[0], port
                masters |= {slot: master for slot in self.slots if first <= slot <= last}
            # Nodes that have left the cluster are forgotten.
            self._clients = {each: self._client(each) for each in {*self._seeds, *masters.values()}}
            self.masters, self._said_by = masters, address
            return masters
        raise failure

    def close_idle(self) -> None:
        """Close the connections that no call uses now."""
        for client in list(self._clients.values()):
            client.close_idle()

    def _client(self, address: Address) -> Client:
        found = self._clients.get(address)
        if found is None:
            host, port = address
            made = Client(self.alias, self.pool, {**self.options, "host": host, "port": port})
            found = self._clients.setdefault(address, made)
        return found

    def _forget(self, slot: int) -> None:
        """Ask another node than the one that said who has this slot."""
        masters, self.masters = self.masters, {}
        for address in {self._said_by, masters.get(slot, self._said_by)}:
            self._failed[address] = clock.now()


class SlotClient(Client):
    """Runs scripts at the node that has one slot, wherever that is by then."""

    def __init__(self, nodes: Nodes, slot: int) -> None:
        super().__init__(nodes.alias, nodes.pool, nodes.options)
        self._nodes = nodes
        self.slot = slot

    def run(self, *script: Any, **how: Any) -> Any:
        return self._nodes.ask(self.slot, lambda node: node.run(*script, **how))

    def commands(self, *commands: Any, **how: Any) -> list[Any]:
        return self._nodes.ask(self.slot, lambda node: node.commands(*commands, **how))


def _seeds(alias: str, urls: Any) -> list[Address]:
    """The nodes that LOCATION names. Raises `InvalidLockConfig`."""
    if not urls or not isinstance(urls, list | tuple):
        raise _wrong(alias, LOCATION_OPTION, "the URL of a node of the cluster, or a list of such")
    seeds: list[Address] = []
    ways = set()
    for url in urls:
        try:
            split: SplitResult = urlsplit(url)
            seeds.append((split.hostname or "", split.port or 6379))
            fits = split.scheme in ("redis", "rediss") and bool(split.hostname)
        except (ValueError, TypeError, AttributeError):
            fits = False
        # A cluster has no database but 0.
        if not fits or split.path.strip("/") not in ("", "0"):
            what = "made of URLs such as redis://host:7000 or rediss://user:password@host:7000"
            raise _wrong(alias, LOCATION_OPTION, what)
        ways.add((split.scheme, split.username, split.password, split.query))
    if len(ways) > 1:
        what = (
            "a list of URLs with the same scheme, user, password and query: all nodes of the "
            "cluster are connected to in one way"
        )
        raise _wrong(alias, LOCATION_OPTION, what)
    return seeds


def _wrong(alias: str, option: str, what: str) -> InvalidLockConfig:
    # Without the value, which may have a password in it.
    return InvalidLockConfig(f"the option {option} of the lock store {alias!r} is {what}")
