"""The connection to one node on which the waiters for locks of its slots are notified."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from redis.exceptions import AskError, ClusterDownError, RedisError, TryAgainError

from ..._compat.redis import send_words
from ..redis.channel import Channel
from ..redis.server_client import ServerClient
from ..redis.subscriber import Subscriber

__all__ = ["ELSEWHERE", "ShardSubscriber"]

ELSEWHERE = (AskError, ClusterDownError, TryAgainError)
"""a node's answers that the slot is not, or not wholly, here now; MOVED is a subclass of ASK"""


class ShardSubscriber(Subscriber):
    """A `Subscriber` to channels of a node's slots.

    When a slot moves to another node, the server ends the subscriptions to its channels. Their
    waiters are woken then, and ask again: at the node that has the slot now.
    """

    confirms, delivers = b"ssubscribe", b"smessage"

    def __init__(self, client: ServerClient, moved: Callable[[], object]) -> None:
        """``moved`` is called when a slot turns out to be at another node."""
        super().__init__(client, b"")
        self._moved = moved

    def keep_only(self, prefixes: Collection[bytes]) -> None:
        """Cut all channels but those whose names begin with one of ``prefixes``: the others' slots
        are at other nodes. The server unsubscribes them itself, as soon as it knows."""
        with self._state:
            gone = [each for each in self._channels.values() if each.prefix not in prefixes]
            for channel in gone:
                self._forget(channel)
        for channel in gone:
            channel.cut = True
            channel.notify()

    def _forget(self, channel: Channel) -> None:
        self._channels.pop(channel.name, None)
        with suppress(ValueError):
            self._idle[channel.prefix].remove(channel)

    def _send_subscribe(self, connection: Any, name: bytes) -> None:
        send_words(connection, b"SSUBSCRIBE", name)

    def _send_unsubscribe(self, connection: Any, name: bytes) -> None:
        send_words(connection, b"SUNSUBSCRIBE", name)

    def _refused(self, error: RedisError) -> None:
        if not isinstance(error, ELSEWHERE):
            super()._refused(error)
        # All channels of this connection are cut: which one it was is not known.
        self._moved()

    def _ended(self, kind: bytes, channel: Channel) -> bool:
        if kind != b"sunsubscribe":
            return False
        self._forget(channel)
        channel.cut = True
        self._moved()
        return True
