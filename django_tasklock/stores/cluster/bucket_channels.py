"""The channels of one bucket, wherever its slot is."""

from __future__ import annotations

from collections.abc import Callable

from ..base import CannotSubscribe
from ..redis.channel import Channel
from .shard_subscriber import ShardSubscriber
from .topology import Topology

__all__ = ["BucketChannels"]


class BucketChannels:
    """Where one waiter gets its channel: from the node that has its lock's slot at that time."""

    __slots__ = ("_bucket", "_home", "_prefix", "_topology")

    def __init__(self, topology: Topology, bucket: int, prefix: bytes) -> None:
        self._topology = topology
        self._bucket = bucket
        self._prefix = prefix
        self._home: ShardSubscriber | None = None

    def has_idle_channel(self) -> bool:
        node = self._topology.known_node(self._bucket)
        return node is not None and node.subscriber.has_idle_channel(self._prefix)

    def join(self) -> Channel:
        self._home = self._topology.node(self._bucket).subscriber
        try:
            return self._home.join(self._prefix)
        except CannotSubscribe:
            # The caller polls, and learns from another node who has the slot.
            self._topology.mark_stale()
            raise

    def leave(self, channel: Channel, *, keep: bool) -> None:
        if self._home is not None:
            self._home.leave(channel, keep=keep)

    def listen(self, channel: Channel, deadline: float) -> None:
        if self._moved():
            channel.cut = True
            return
        assert self._home is not None
        self._home.listen(channel, deadline)

    def wake_by(self, channel: Channel, wake: Callable[[], None]) -> None:
        if self._moved():
            channel.cut = True
            wake()
        else:
            assert self._home is not None
            self._home.wake_by(channel, wake)

    def is_doubtful(self) -> bool:
        return self._home is not None and self._home.is_doubtful()

    def _moved(self) -> bool:
        """Whether the slot was found at another node after this waiter had subscribed."""
        node = self._topology.known_node(self._bucket)
        return self._home is None or node is None or node.subscriber is not self._home

    def in_use(self) -> bool:
        node = self._topology.known_node(self._bucket)
        return node is not None and node.subscriber.in_use()
