"""Locks on a Redis Cluster: spread over buckets, each of which is like a store of its own."""

from __future__ import annotations

import builtins
import heapq
import time
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from redis import ConnectionPool
from redis import exceptions as errors
from redis.connection import parse_url

from .._compat.native_threads import this_thread
from .._values import clock
from .._values.event import Event
from .._values.lock_info import LockInfo
from .._values.slots import base_of
from .._values.tokens import chance
from ..conf import StoreSettings
from ..exceptions import StoreUnavailable
from .base import BaseStore, Extension, Finding, Note
from .records import Change, Done, Entry, left_of
from .redis.caches import Encoding, timeouts
from .redis.check import findings
from .redis.connections import DEFAULT_SOCKET_TIMEOUT_SECONDS, Client, MayHaveRun
from .redis.keys import Keys
from .redis.store import RedisStore

T = TypeVar("T")

# The host and the port of a node.
Address = tuple[str, int]

# Not to be changed: two processes that disagree about it would not exclude each other. A list reads
# the index of each bucket; the locks can be on as many masters as there are buckets.
BUCKETS = 64
SLOTS_OF_A_CLUSTER = 16384

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


def _slot_of(text: str) -> int:
    # Redis's CRC16.
    return crc_hqx(text.encode(), 0) % SLOTS_OF_A_CLUSTER


def _tags() -> list[str]:
    """For each bucket the smallest number whose slot is in the bucket's part of all slots, so that
    masters with as many slots have as many buckets."""
    tags: dict[int, str] = {}
    for number in map(str, count()):
        tags.setdefault(_slot_of(number) * BUCKETS // SLOTS_OF_A_CLUSTER, number)
        if len(tags) == BUCKETS:
            break
    return [tags[bucket] for bucket in range(BUCKETS)]


TAGS = _tags()
# The slot of each bucket, in ascending order.
SLOTS = [*map(_slot_of, TAGS)]


def bucket_of(name: str) -> int:
    """The bucket of a lock or a note, by a number from 0 on.

    The permits of a name are in one bucket, so one script reads them all. The reservation of a job
    is in that of the job's lock, whose name is the last word of the key.
    """
    return crc_hqx(base_of(name.rpartition(" ")[2], 1).encode(), 0) % BUCKETS


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
        self.masters: Mapping[int, Address] = {}
        """which master has the slot of each bucket, as far as that is known"""
        self._clients: dict[Address, Client] = {}
        # When a node last did not know, or did not answer.
        self._failed: dict[Address, float] = {}
        given = settings.options.get(LOCATION_OPTION)
        urls: Any = [given] if isinstance(given, str) else given
        try:
            read = [parse_url(url) for url in urls]  # type: ignore[no-untyped-call]
            self._seeds = [(each.pop("host"), each.pop("port", 6379)) for each in read]
            # A cluster has no database but 0.
            if any(each.pop("db", 0) or each != read[0] for each in read) or not read:
                raise ValueError
        except (AttributeError, KeyError, TypeError, ValueError):
            # Without the value, which may have a password in it.
            raise settings.wrong(
                f"the option {LOCATION_OPTION} must be the URL of a node of the cluster, such as "
                "redis://host:7000 or rediss://user:password@host:7000, or a list of URLs. All "
                "must have the same scheme, user, password and query, which are used for every node"
            ) from None
        self._said_by = self._seeds[0]
        # Releases of redis-py before version 8 have no timeout.
        default = {"socket_timeout": DEFAULT_SOCKET_TIMEOUT_SECONDS}
        try:
            kwargs = default | settings.options.get(POOL_OPTION, {})
            self.pool = ConnectionPool.from_url(urls[0], **kwargs)
            connection = self._client(self._said_by).new_connection()
        except (TypeError, ValueError, OSError) as error:
            raise settings.wrong(
                f"the option {POOL_OPTION} must be a dict of arguments for redis-py's connections: "
                f"{error}"
            ) from error
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
                self._forget(slot)
                passes = isinstance(error.__cause__, PASSING) and not isinstance(error, MayHaveRun)
                if not passes or clock.now() >= give_up:
                    raise
            time.sleep(chance.uniform(*PAUSE_SECONDS))

    def _node(self, slot: int) -> Client:
        masters = self.masters or self.learned()
        if slot not in masters:
            error = f"no node of the cluster serves the slot {slot}"
            raise StoreUnavailable(self.alias, error) from errors.ClusterDownError(error)
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
            host, port = address
            options = {**self.options, "host": host, "port": port}
            made = Client(self.alias, self.pool, options, **OF_RENEWAL)
            found = self._clients.setdefault(address, made)
        return found

    def _forget(self, slot: int) -> None:
        """Ask another node than the one that said who has this slot."""
        masters, self.masters = self.masters, {}
        for address in {self._said_by, masters.get(slot, self._said_by)}:
            self._failed[address] = clock.now()


class _SlotClient(Client):
    """Runs scripts at the node that has one slot, wherever that is by then."""

    def __init__(self, nodes: Nodes, slot: int) -> None:
        super().__init__(nodes.alias, nodes.pool, nodes.options)
        self._nodes, self._slot = nodes, slot

    def run(self, *script: Any, **how: Any) -> Any:
        return self._nodes.ask(self._slot, lambda node: node.run(*script, **how))

    def commands(self, *commands: Any, **how: Any) -> list[Any]:
        return self._nodes.ask(self._slot, lambda node: node.commands(*commands, **how))


class _Bucket(RedisStore):
    """The locks of one slot. All of its keys have the same hash tag."""

    uses_cache = False
    known_options = frozenset({LOCATION_OPTION, POOL_OPTION})

    def __init__(self, settings: StoreSettings, nodes: Nodes, number: int) -> None:
        self._nodes, self._tag, self.slot = nodes, f"{{{TAGS[number]}}}", SLOTS[number]
        super().__init__(settings)

    def _server(self) -> tuple[Client, Encoding, Keys]:
        client, tagged = _SlotClient(self._nodes, self.slot), BaseStore.key(self, self._tag)
        return client, Encoding(str), Keys(str, tagged, self.alias, prepends=True)


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
            raise settings.wrong(
                f"its KEY_PREFIX must have no braces, not {settings.key_prefix!r}: the store puts "
                "braces into the keys, which choose the slot"
            )
        self.nodes = Nodes(settings)
        self.buckets = [_Bucket(settings, self.nodes, number) for number in range(BUCKETS)]
        self.supports_history = self.buckets[0].supports_history

    # The three methods of a store.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        parts = self._by_bucket([change.name for change in changes])
        puts = [(partial(bucket.put, least_fence=least_fence), places) for bucket, places in parts]
        return self.put_in_turn(changes, puts)

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        found: dict[int, Entry | None] = {}
        for bucket, places in self._by_bucket(names):
            found |= zip(places, bucket.get([names[place] for place in places]), strict=True)
        return [found[place] for place in range(len(names))]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return heapq.merge(*(bucket.list(prefix) for bucket in self.buckets), key=left_of)

    # Verbs that have a script of their own.

    def release(self, name: str, token: str, note: Note | None = None) -> bool:
        if note is None:
            return self.buckets[bucket_of(name)].release(name, token)
        return super().release(name, token, note)

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        done: dict[int, bool] = {}
        masters, silent = self.nodes.masters or self.nodes.learned(), set()
        for bucket, places in self._by_bucket([each.name for each in batch]):
            master = masters.get(bucket.slot)
            if master in silent:
                continue  # Each question to it would take as long as the first one.
            try:
                part = bucket.extend_many([batch[place] for place in places])
                done |= zip(places, part, strict=True)
            except StoreUnavailable as error:
                silent.add(master)
                failure = error
        if batch and not done:
            raise failure
        return [done.get(place) for place in range(len(batch))]

    def count(self, prefix: str = "") -> int:
        return sum(bucket.count(prefix) for bucket in self.buckets)

    # What the store has beside these.

    def key(self, name: str) -> str:
        return self.buckets[bucket_of(name)].key(name)

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        for bucket in self.buckets:
            yield from bucket.endless(prefix)

    def record(self, events: Sequence[Event]) -> None:
        self.buckets[0].record(events)

    def events(self, *of: Any, **by_name: Any) -> builtins.list[Event]:
        return self.buckets[0].events(*of, **by_name)

    def check(self) -> Iterable[Finding]:
        together: dict[Finding, builtins.list[str]] = {}
        masters = self._one_of_each_master()
        for (host, port), bucket in masters.items():
            needed = bucket.replicas.needed
            for finding in findings(bucket.client, bucket.keys, needed, in_cluster=True):
                together.setdefault(finding, []).append(f"{host}:{port}")
        for finding, where in together.items():
            who = "every master" if len(where) == len(masters) else ", ".join(where)
            yield replace(finding, message=f"{who}: {finding.message}")

    def uptime(self) -> float:
        return min(bucket.uptime() for bucket in self._one_of_each_master().values())

    def close_idle(self) -> None:
        self.nodes.close_idle()

    def _one_of_each_master(self) -> dict[Address, _Bucket]:
        return {
            master: self.buckets[SLOTS.index(slot)] for slot, master in self.nodes.learned().items()
        }

    def _by_bucket(self, names: Sequence[str]) -> builtins.list[tuple[_Bucket, builtins.list[int]]]:
        """The buckets of some names, each with the places of its own among them."""
        places: dict[int, builtins.list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(bucket_of(name), []).append(place)
        return [(self.buckets[number], part) for number, part in places.items()]
