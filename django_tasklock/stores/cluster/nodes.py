"""One node of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..redis.server_client import NEEDED, ServerClient
from .location import Address, Location
from .shard_subscriber import ShardSubscriber

__all__ = ["Node"]

OBSERVER_TIMEOUT_SECONDS = 1.0
"""how long a node may take to say who serves which slots, before another one is asked"""


class Node:
    """One node: its connections for scripts, and the one on which waiters are notified."""

    def __init__(
        self,
        alias: str,
        location: Location,
        address: Address,
        mend: Callable[[Sequence[Any]], bool],
        moved: Callable[[], object],
    ) -> None:
        """``mend`` is `ServerClient.mend`; ``moved`` is called when a slot is no longer here."""
        self.address = address
        pool = location.pool(address)
        self.client = ServerClient(alias, pool, location.timeouts)
        self.client.mend = mend
        self.client.needed = f"{NEEDED}, +cluster|slots"
        timeout = min(location.patience, OBSERVER_TIMEOUT_SECONDS)
        self.observer = ServerClient(
            alias, pool, {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        )
        """for questions about the cluster"""
        self.observer.needed = self.client.needed
        self.subscriber = ShardSubscriber(self.client, moved)

    def close_idle(self) -> None:
        """Close the connections that no call and no waiter uses now."""
        self.client.close_idle()
        self.observer.close_idle()
        self.subscriber.close_idle()

    def __repr__(self) -> str:
        return f"<Node {self.address}>"
