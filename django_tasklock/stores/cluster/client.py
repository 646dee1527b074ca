"""Running scripts on the nodes of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from weakref import proxy

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...exceptions import StoreUnavailable
from ..redis.connections import new_connection
from ..redis.decoding import decoder
from ..redis.replicas import ReplicaWait
from ..redis.script import ONE_COMMAND, Script
from ..redis.server_client import Call
from .buckets import ClusterKeyspace, bucket_of_key
from .location import Location
from .nodes import Node
from .redirects import Redirects
from .topology import Topology

__all__ = ["ClusterClient"]


class ClusterClient:
    """Runs each script at the node that serves the slot of its first key, by `ServerClient`.

    Records are JSON.
    """

    def __init__(self, alias: str, location: Location, keyspace: ClusterKeyspace) -> None:
        self.alias = alias
        self.encode: Callable[[Any], Any] = _encode
        self.decode: Callable[[bytes], Any] = decoder(_encode, json.loads)
        self.mend: Callable[[Sequence[Any]], bool] = bool
        own = proxy(self)
        self.topology = Topology(alias, location, keyspace.prefixes, lambda keys: own.mend(keys))
        self._location = location

    def new_connection(self, **overrides: Any) -> Any:
        """A connection to a node that the settings name; see `connections.new_connection`."""
        pool = self._location.pool(self._location.seeds[0])
        return new_connection(pool, **self._location.timeouts | overrides)

    def close_idle(self) -> None:
        """Close the connections that no call uses now."""
        for node in list(self.topology.nodes.values()):
            node.close_idle()

    def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any] = (),
        *,
        again: bool = True,
        private: bool = False,
        last: bool = False,
        meanwhile: Callable[[], object] = tuple,
        wait: ReplicaWait | None = None,
    ) -> Any:
        """`ServerClient.run`, at the node that serves the slot.

        While the cluster changes, the script is sent again to where it belongs, for about as long
        as a socket may be silent, and then `StoreUnavailable` is raised.
        """
        script, bucket = script.sharded, bucket_of_key(keys[0])
        redirects: Redirects | None = None
        node: Node | None = None
        while True:
            try:
                if node is None:
                    node = self.topology.node(bucket)
                return node.client.run(
                    script, keys, args, again=again, private=private, last=last,
                    meanwhile=meanwhile, wait=wait, before=redirects.before if redirects else b"",
                )  # fmt: skip
            except StoreUnavailable as error:
                if redirects is None:
                    patience = self._location.patience
                    redirects = Redirects(self.topology, bucket, script, patience, again=again)
                node = redirects.next_node(error, node)

    def run_many(self, calls: Sequence[Call], *, private: bool = False) -> list[Any]:
        """Run several scripts, each of which may run twice, in one round trip to each node.

        Returns the reply of each. Raises `StoreUnavailable` if one of them has none.
        """
        replies: list[Any] = [None] * len(calls)
        at_node: dict[Node, list[int]] = {}
        for at, call in enumerate(calls):
            at_node.setdefault(self.topology.node(bucket_of_key(call.keys[0])), []).append(at)
        for node, places in at_node.items():
            sharded = [calls[at]._replace(script=calls[at].script.sharded) for at in places]
            try:
                answers = node.client.run_many(sharded, private=private)
            except StoreUnavailable as error:
                if isinstance(error.__cause__, RedisTimeoutError | TimeoutError):
                    self.topology.mark_stale(node)
                    raise
                answers = [error.__cause__] * len(places)
            for at, answer in zip(places, answers, strict=True):
                if isinstance(answer, RedisError | OSError):
                    # One by one, which follows the cluster's changes, and says what is wrong.
                    answer = self.run(*calls[at], private=private)
                replies[at] = answer
        return replies

    def ask(self, command: str, keys: Sequence[bytes] = (), *args: Any) -> Any:
        """`ServerClient.ask`, at the node that serves the slot of the first key."""
        return self.run(ONE_COMMAND, keys, (command, *args))


_as_json = json.JSONEncoder(separators=(",", ":")).encode


def _encode(record: Any) -> bytes:
    return _as_json(record).encode()
