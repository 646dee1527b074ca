"""Locks on a Redis Cluster: spread over buckets, each of which is like a store of its own."""

from __future__ import annotations

import builtins
import heapq
import re
import time
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

from redis import ConnectionPool
from redis import exceptions as errors
from redis.connection import parse_url

from .._compat.native_threads import this_thread
from .._values import clock
from .._values.lock_info import Event
from .._values.tokens import chance
from ..conf import StoreSettings
from ..exceptions import StoreUnavailable
from .base import BaseStore, Extension, Finding, Note
from .records import Change, Done, Entry, left_of
from .redis.check import findings
from .redis.connections import DEFAULT_SOCKET_TIMEOUT_SECONDS, Client, MayHaveRun
from .redis.keys import Encoding, Keys, timeouts
from .redis.store import RedisStore

T = TypeVar("T")

# The host and the port of a node.
Address = tuple[str, int]

# Not to be changed: two processes that disagree about it would not exclude each other. A list reads
# the index of each bucket; the locks can be on as many masters as there are buckets.
BUCKETS, ALL_SLOTS = 64, 16384
# The hash tag of each bucket's keys: the smallest number whose slot, Redis's CRC16, is in the
# bucket's part of all slots, so that masters with as many slots have as many buckets.
_slots = {str(tag): crc_hqx(b"%d" % tag, 0) % ALL_SLOTS for tag in reversed(range(344))}
_tags = {slot * BUCKETS // ALL_SLOTS: tag for tag, slot in _slots.items()}
TAGS = [_tags[bucket] for bucket in range(BUCKETS)]
# The slot of each bucket, in ascending order.
SLOTS = [_slots[tag] for tag in TAGS]

# The options: the URL of a node, or a list of URLs of some; arguments of redis-py's connections,
# such as ``ssl_ca_certs``.
LOCATION_OPTION, POOL_OPTION = "LOCATION", "CONNECTION_POOL_KWARGS"
# For so long the renewal thread waits for a node, and asks again while the cluster changes: leases
# at other nodes are due as well, and it comes back to these.
RENEWAL_PATIENCE_SECONDS = 0.5
OF_RENEWAL = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), RENEWAL_PATIENCE_SECONDS)
PAUSE_SECONDS = 0.01, 0.05
# After these a question is asked again: nodes answer so while a slot moves, has moved, or is served
# by nobody, and nothing was done then (a `MovedError` is an `AskError`); or there was no answer.
# Not after a timeout: that node may hang for long, and the time is over.
PASSING = errors.AskError, errors.TryAgainError, errors.ClusterDownError, errors.ConnectionError
# What a name of a permit has behind that of the lock whose permit it is, which may be one itself.
_permit = re.compile(r"(#[1-9][0-9]{0,3})+\Z")


def bucket_of(name: str) -> int:
    """The bucket of a lock or a note, by a number from 0 on.

    The permits of a name are in the bucket of that name, so one script reads them all. The
    reservation of a job is in that of the job's lock, whose name is the last word of the key.
    """
    return crc_hqx(_permit.sub("", name.rpartition(" ")[2]).encode(), 0) % BUCKETS


def _by_bucket(things: Iterable[T], names: Iterable[str]) -> dict[int, list[T]]:
    """Some things, by the buckets of their names."""
    parts: dict[int, list[T]] = {}
    for thing, name in zip(things, names, strict=True):
        parts.setdefault(bucket_of(name), []).append(thing)
    return parts


class Nodes:
    """The masters of a cluster: which of them has which slot, and how they are reached.

    redis-py's ``RedisCluster`` is not used. It puts a connection back with an unread reply on it if
    a call is interrupted, and sends again what must not be made twice.

    What is known is in dicts that are replaced as a whole, so threads, interruptions and forks find
    the old or the new one, and no lock.
    """

    def __init__(self, settings: StoreSettings) -> None:
        """Asks no server. Raises `InvalidLockConfig` for a wrong option."""
        self.alias = settings.alias
        self.options: dict[str, Any] = timeouts(settings)
        # Which master has the slot of each bucket, as far as that is known.
        self.masters: Mapping[int, Address] = {}
        self._clients: dict[Address, Client] = {}
        # When a node last did not know, or did not answer.
        self._failed: dict[Address, float] = {}
        given = settings.options.get(LOCATION_OPTION)
        urls: Any = [given] if isinstance(given, str) else given
        try:
            self._seeds = _addresses_in(urls)
            self._said_by = self._seeds[0]
        except (AttributeError, LookupError, TypeError, ValueError):
            # Without the value, which may have a password in it.
            raise settings.wrong(
                f"the option {LOCATION_OPTION} must be the URL of a node of the cluster, such as "
                "redis://host:7000, or of several, with the same scheme, user, password and query"
            ) from None
        try:
            self.pool = ConnectionPool.from_url(urls[0], **settings.options.get(POOL_OPTION, {}))
            connection = self._client(self._said_by).new_connection()
        except (TypeError, ValueError, OSError) as error:
            what = f"the option {POOL_OPTION} must be a dict of arguments of redis-py's connections"
            raise settings.wrong(f"{what}: {error}") from error
        self._patience: float = connection.socket_timeout or DEFAULT_SOCKET_TIMEOUT_SECONDS

    def call(self, slot: int, send: Callable[[Client], T]) -> T:
        """What ``send`` returns for the client of the node that has a slot.

        While the cluster changes it is sent again, for about the socket's timeout. Raises
        `StoreUnavailable`.
        """
        patience = self._patience
        if this_thread.renews:
            patience = min(patience, RENEWAL_PATIENCE_SECONDS)
        give_up = clock.now() + patience
        while True:
            try:
                return send(self._node(slot))
            except StoreUnavailable as error:
                self._forget(slot)
                cause = error.__cause__
                if not isinstance(cause, PASSING) or isinstance(error, MayHaveRun):
                    raise
                if clock.now() >= give_up:
                    reason = f"no node served the slot {slot} for {patience:g} s: {cause}"
                    raise StoreUnavailable(self.alias, reason) from cause
            time.sleep(chance.uniform(*PAUSE_SECONDS))

    def _node(self, slot: int) -> Client:
        masters = self.masters or self.learned()
        if slot not in masters:
            error = errors.ClusterDownError("it has no master")
            raise StoreUnavailable(self.alias, str(error)) from error
        return self._client(masters[slot])

    def learned(self) -> Mapping[int, Address]:
        """Which master has each slot, as one node says: those that have failed are asked last.

        Raises `StoreUnavailable`, after the socket's timeout and at most as long once more.
        """
        give_up = clock.now() + self._patience
        addresses = {*self._seeds, *self._clients}
        for address in sorted(addresses, key=lambda each: self._failed.get(each, 0.0)):
            try:
                ranges = self._client(address).command("CLUSTER", "SLOTS")
            except StoreUnavailable as error:
                self._failed[address] = clock.now()
                failure = error
                if clock.now() >= give_up:
                    break
                continue
            masters: dict[int, Address] = {}
            for first, last, (host, port, *_), *_ in ranges:
                # Without a host it is the node that was asked.
                master = (host or b"").decode() or address[0], port
                masters |= {slot: master for slot in SLOTS if first <= slot <= last}
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
            options = {**self.options, "host": address[0], "port": address[1]}
            made = Client(self.alias, self.pool, options, **OF_RENEWAL)
            found = self._clients.setdefault(address, made)
        return found

    def _forget(self, slot: int) -> None:
        """Ask another node than the one that said who has this slot."""
        masters, self.masters = self.masters, {}
        for address in {self._said_by, masters.get(slot, self._said_by)}:
            self._failed[address] = clock.now()


def _addresses_in(urls: Any) -> list[Address]:
    """The hosts and ports in some URLs. Raises anything for what are none, or differ otherwise."""
    read = [parse_url(url) for url in urls]  # type: ignore[no-untyped-call]
    addresses = [(each.pop("host"), each.pop("port", 6379)) for each in read]
    for each in read:
        # A cluster has no database but 0.
        if each.pop("db", 0) or each != read[0]:
            raise ValueError
    return addresses


class _SlotClient(Client):
    """Runs scripts at the node that has one slot, wherever that is by then."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes.alias, nodes.pool, nodes.options)
        self.nodes, self.slot = nodes, SLOTS[0]

    def run(self, *script: Any, **how: Any) -> Any:
        return self.nodes.call(self.slot, methodcaller("run", *script, **how))

    def commands(self, *commands: Any, **how: Any) -> list[Any]:
        return self.nodes.call(self.slot, methodcaller("commands", *commands, **how))


class _Bucket(RedisStore):
    """The locks of one slot. All of its keys have the same hash tag."""

    client: _SlotClient
    known_options = frozenset({LOCATION_OPTION, POOL_OPTION})

    def _server(self) -> tuple[Client, Encoding, Keys]:
        return _SlotClient(Nodes(self.settings)), Encoding(str), self._keys_of_bucket(0)

    def beside(self, number: int) -> _Bucket:
        """Another bucket: it has keys and a client of its own, and all else from this one."""
        bucket = copy(self)
        bucket.client = copy(self.client)
        bucket.client.slot = SLOTS[number]
        bucket.keys = self._keys_of_bucket(number)
        return bucket

    def _keys_of_bucket(self, number: int) -> Keys:
        tagged = BaseStore.key(self, f"{{{TAGS[number]}}}")
        return Keys(str, tagged, self.alias, prepends=True)


class RedisClusterStore(BaseStore):
    """Locks on a Redis Cluster or a Valkey cluster, without a cache.

    What is done to one lock is one script at the node that has the lock's slot; the scripts are
    those of `RedisStore`. Waiters poll: there is no wait queue. Several changes of one `put` are
    made together only in one bucket.

    A lock's fences grow as long as its slot's master keeps its data, wherever the slot moves. After
    a failover to a replica that missed the last lease they still grow, unless that node's clock is
    behind by more than the time between the two leases. Fences of different locks are comparable
    only as far as the nodes' clocks agree.
    """

    puts_together = False
    fences_are_times = True
    supports_history = True
    known_options = _Bucket.known_options | RedisStore.known_options

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if set("{}") & set(settings.key_prefix):
            what = f"its KEY_PREFIX must have no braces, not {settings.key_prefix!r}"
            raise settings.wrong(f"{what}: the store puts its own into the keys, to choose slots")
        first = _Bucket(settings)
        self.nodes = first.client.nodes
        self.buckets = [first.beside(number) for number in range(BUCKETS)]
        self.supports_history = first.supports_history

    # The three methods of a store.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        parts = []
        names = [change.name for change in changes]
        for number, places in _by_bucket(range(len(changes)), names).items():
            parts.append((partial(self.buckets[number].put, least_fence=least_fence), places))
        return self.put_in_turn(changes, parts)

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        found: dict[str, Entry | None] = {}
        for number, part in _by_bucket(names, names).items():
            found |= zip(part, self.buckets[number].get(part), strict=True)
        return [found[name] for name in names]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return heapq.merge(*(bucket.list(prefix) for bucket in self.buckets), key=left_of)

    # Verbs that have a script of their own.

    def release(self, name: str, token: str, note: Note | None = None) -> bool:
        if note is None:
            return self.buckets[bucket_of(name)].release(name, token)
        return super().release(name, token, note)

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        done: dict[Extension, bool] = {}
        masters = self.nodes.masters or self.nodes.learned()
        silent: set[Address | None] = set()
        for number, part in _by_bucket(batch, [each.name for each in batch]).items():
            master = masters.get(SLOTS[number])
            if master in silent:
                continue  # Each question to it would take as long as the first one.
            try:
                done |= zip(part, self.buckets[number].extend_many(part), strict=True)
            except StoreUnavailable as error:
                silent.add(master)
                failure = error
        if batch and not done:
            raise failure
        return [done.get(each) for each in batch]

    def count(self, prefix: str = "") -> int:
        return sum(bucket.count(prefix) for bucket in self.buckets)

    # What the store has beside these.

    def may_have_given(self, name: str, fence: int | None) -> bool:
        return fence is None or self.buckets[bucket_of(name)].may_have_given(name, fence)

    def key(self, name: str) -> str:
        return self.buckets[bucket_of(name)].key(name)

    def record(self, events: Sequence[Event]) -> None:
        self.buckets[0].record(events)

    def events(self, *of: Any, **by_name: Any) -> builtins.list[Event]:
        return self.buckets[0].events(*of, **by_name)

    def check(self) -> Iterable[Finding]:
        together: dict[Finding, builtins.list[str]] = {}
        masters = self._one_of_each_master()
        for (host, port), bucket in masters.items():
            for finding in findings(bucket, in_cluster=True):
                together.setdefault(finding, []).append(f"{host}:{port}")
        for finding, where in together.items():
            who = "every master" if len(where) == len(masters) else ", ".join(where)
            yield finding._replace(message=f"{who}: {finding.message}")

    def uptime(self) -> float:
        return min(bucket.uptime() for bucket in self._one_of_each_master().values())

    def close_idle(self) -> None:
        self.nodes.close_idle()

    def _one_of_each_master(self) -> dict[Address, _Bucket]:
        masters = self.nodes.learned()
        return {masters[slot]: self.buckets[SLOTS.index(slot)] for slot in masters}
