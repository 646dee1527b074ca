"""Which node serves the slot of each bucket now."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import proxy

from redis.exceptions import ClusterDownError

from ..._compat.redis import Redirection
from ..._values import clock
from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from .buckets import BUCKET_SLOTS, BUCKETS
from .location import Address, Location
from .nodes import Node

__all__ = ["Topology"]

REFRESH_INTERVAL_SECONDS = 0.1
"""the nodes are asked at most so often, however many calls fail"""
MIN_VERSION = (7, 0)
"""the first version with channels of shards"""


class SlotMap(NamedTuple):
    """What a node said last, for our buckets."""

    owners: tuple[Node | None, ...]
    """for each bucket the master of its slot"""
    shards: tuple[str, ...]
    """for each bucket the number of its master"""
    addresses: frozenset[Address]
    """of all nodes"""


class Topology:
    """The nodes of a cluster, and which of them serves which bucket.

    It is asked when it is first needed, and again after a node said MOVED, or did not answer. No
    lock protects it: a new map takes the place of the old one in one assignment.
    """

    def __init__(
        self,
        alias: str,
        location: Location,
        prefixes: Sequence[bytes],
        mend: Callable[[Sequence[Any]], bool],
    ) -> None:
        """``prefixes`` are those of each bucket's channels; ``mend`` is `ServerClient.mend`."""
        self._alias = alias
        self._location = location
        self._prefixes = prefixes
        self._mend = mend
        self.nodes: dict[Address, Node] = {}
        """all that were heard of, and are not known to have left"""
        self._map: SlotMap | None = None
        self._stale = False
        self._refreshed_at = 0.0
        self._failed_at: dict[Address, float] = {}
        self._checked: set[Address] = set()
        """the nodes whose version is known to be new enough"""

    def node(self, bucket: int) -> Node:
        """The master of a bucket's slot.

        Raises `StoreUnavailable` if no node can be asked, or none serves the slot.
        """
        if self._map is None:
            self.refresh()
        elif self._stale:
            with suppress(StoreUnavailable):  # What was known is tried then.
                self.refresh()
        return self._owner(bucket)

    def known_node(self, bucket: int) -> Node | None:
        """The master of a bucket's slot, as far as it is known. Asks no server."""
        return None if self._map is None else self._map.owners[bucket]

    def is_known(self) -> bool:
        """Whether a node has said who serves the slots."""
        return self._map is not None

    def shard(self, bucket: int) -> str:
        """The number of the bucket's master; empty while it is not known. Asks no server."""
        return "" if self._map is None else self._map.shards[bucket]

    def masters(self) -> list[Node]:
        """All masters that serve a bucket, as they are now.

        Raises `StoreUnavailable`, also if a bucket's slot is served by none.
        """
        self.refresh(at_once=True)
        return list(dict.fromkeys(self._owner(bucket) for bucket in range(BUCKETS)))

    def mark_stale(self, failed: Node | None = None) -> None:
        """Ask again before the next call; the node that failed, last."""
        if failed is not None:
            self._failed_at[failed.address] = clock.now()
        self._stale = True

    def at(self, to: Redirection, said_by: Node) -> Node:
        """The node that a redirection names."""
        return self._node(Address(to.host or said_by.address.host, to.port))

    def learn(self, to: Redirection, said_by: Node) -> None:
        """Note what a MOVED says. The other slots are asked for before the next call."""
        node, known = self.at(to, said_by), self._map
        if known is not None:
            owners = tuple(
                node if slot == to.slot else owner
                for slot, owner in zip(BUCKET_SLOTS, known.owners, strict=True)
            )
            self._use(owners, known.addresses | {node.address})
        self._stale = True

    def refresh(self, *, at_once: bool = False) -> None:
        """Ask a node which nodes serve the slots; not more often than is sensible.

        ``at_once``: whenever it was done last.
        Raises `StoreUnavailable` if no node answers.
        """
        if (
            self._map is not None
            and not at_once
            and clock.now() < self._refreshed_at + REFRESH_INTERVAL_SECONDS
        ):
            return
        self._refreshed_at, self._stale = clock.now(), False
        error: StoreUnavailable | None = None
        for address in self._candidates():
            node = self._node(address)
            try:
                self._check_version(node)
                said = node.observer.ask("CLUSTER", (), "SLOTS")
            except StoreUnavailable as failed:
                error = failed
                self._failed_at[address] = clock.now()
            else:
                self._read(node, said)
                return
        assert error is not None
        raise error

    def _candidates(self) -> list[Address]:
        """All nodes in random order, but those that failed last at the end."""
        known = self._map.addresses if self._map is not None else frozenset()
        addresses = [*known.union(self._location.seeds)]
        chance.shuffle(addresses)
        return sorted(addresses, key=lambda each: self._failed_at.get(each, 0.0))

    def _check_version(self, node: Node) -> None:
        if node.address in self._checked:
            return
        lines = node.observer.ask("INFO", (), "server").decode("utf-8", "replace").splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line)
        version = info.get("redis_version", "0")
        mode = info.get("redis_mode") or info.get("server_mode", "cluster")  # Redis, Valkey 9.
        if mode != "cluster":
            raise StoreUnavailable(
                self._alias, f"{node.address} is no node of a cluster: use RedisStore for it"
            )
        if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
            raise StoreUnavailable(
                self._alias,
                f"{node.address} is Redis {version}, and the store on a cluster needs Redis 7.0 or "
                "later, or Valkey, for its channels of shards (SSUBSCRIBE)",
            )
        self._checked.add(node.address)

    def _read(self, said_by: Node, slots: Sequence[Any]) -> None:
        ranges = sorted(slots, key=lambda entry: int(entry[0]))
        starts = [int(entry[0]) for entry in ranges]
        owners: list[Node | None] = []
        for slot in BUCKET_SLOTS:
            at = bisect_right(starts, slot) - 1
            served = at >= 0 and slot <= int(ranges[at][1])
            owners.append(self._node(_address(ranges[at][2], said_by)) if served else None)
        addresses = {_address(each, said_by) for entry in ranges for each in entry[2:]}
        self._use(tuple(owners), frozenset(addresses | {said_by.address}))

    def _use(self, owners: tuple[Node | None, ...], addresses: frozenset[Address]) -> None:
        masters = sorted({each.address for each in owners if each is not None})
        shards = tuple("" if each is None else str(masters.index(each.address)) for each in owners)
        self._map = SlotMap(owners, shards, addresses)
        for address, node in list(self.nodes.items()):
            own = {
                prefix
                for prefix, owner in zip(self._prefixes, owners, strict=True)
                if owner is node
            }
            node.subscriber.keep_only(own)
            if address not in addresses and address not in self._location.seeds:
                self.nodes.pop(address, None)

    def _owner(self, bucket: int) -> Node:
        assert self._map is not None
        owner = self._map.owners[bucket]
        if owner is None:
            slot = BUCKET_SLOTS[bucket]
            self._stale = True
            raise StoreUnavailable(
                self._alias, f"no node of the cluster serves the slot {slot}"
            ) from ClusterDownError(f"slot {slot} is not served")
        return owner

    def _node(self, address: Address) -> Node:
        node = self.nodes.get(address)
        if node is None:
            own = proxy(self)
            made = Node(self._alias, self._location, address, self._mend, lambda: own.mark_stale())
            node = self.nodes.setdefault(address, made)
        return node


def _address(entry: Sequence[Any], said_by: Node) -> Address:
    # A node that does not know its own host leaves it out: it is the one that was asked.
    host = (entry[0] or b"").decode()
    return Address(said_by.address.host if host in ("", "?") else host, int(entry[1]))
