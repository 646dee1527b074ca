"""The connection on which the waiters of a process are notified of hand-overs."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..._compat.redis import (
    arrives,
    read_message,
    send_words,
    unless_closed,
)
from ..._values import clock
from ..base import CannotSubscribe
from .channel import Channel
from .listener import Listener
from .readers import Readers
from .server_client import ServerClient
from .unshared import UnsharedConnections

__all__ = ["Subscriber"]

_all: WeakSet[Subscriber] = WeakSet()

SUBSCRIBE_ATTEMPTS = 3
"""how many connections are tried: the first may have been cut while no waiter read it"""
TRUST_SECONDS = 10.0
"""a connection that was silent for longer may have been dropped on the way, without a word"""
NO_CONNECTION_SECONDS = 0.01
"""how long the listener waits for a waiter to make a connection: all have been told to ask again"""
SUBSCRIBE_CONFIRM_SECONDS = 5.0
"""how long to wait for the server's confirmation of a subscription"""


class Subscriber:
    """One subscribed connection for each process, whatever the number of waiters.

    It has no thread: one of the waiters reads for all, and another one takes over when it leaves.
    A thread reads only where others are to be woken, which do not listen themselves: see `wake_by`.
    Its connection does not count among those for scripts, which releases need.
    """

    confirms, delivers = b"subscribe", b"message"
    """the kinds of what the server sends"""

    def __init__(self, client: ServerClient, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix
        self._connections = UnsharedConnections(client)
        self.start()
        _all.add(self)

    def start(self) -> None:
        """Begin without a connection and channels, also in a new process: they are the parent's."""
        self._connection: Any = None
        self._heard = clock.now()
        self._channels: dict[bytes, Channel] = {}
        self._idle: defaultdict[bytes, list[Channel]] = defaultdict(list)
        """for the next waiters, by the prefix of their names"""
        self._state = threading.Lock()
        self._readers = Readers()
        self._listener = Listener(self._listen_for_all)

    def close_idle(self) -> None:
        """Close the connection if no waiter has a channel now."""
        with self._state:
            idle = sum(map(len, self._idle.values()))
            connection = self._connection if len(self._channels) == idle else None
        if connection is not None:
            self._cut(connection)

    def has_idle_channel(self, prefix: bytes | None = None) -> bool:
        """Whether `join` can return a channel that is subscribed already."""
        return bool(self._idle[prefix or self._prefix]) and not self.is_doubtful()

    def is_doubtful(self) -> bool:
        """Whether nothing was heard for so long that the connection may be none any more."""
        return clock.now() > self._heard + TRUST_SECONDS

    def join(self, prefix: bytes | None = None) -> Channel:
        """Return a channel that is subscribed, for one waiter. Its name begins with ``prefix``.

        Raises `CannotSubscribe` if no connection can be made, and `StoreUnavailable` if the server
        refuses to subscribe.
        """
        for _ in range(SUBSCRIBE_ATTEMPTS):
            channel = self._subscribed(prefix or self._prefix)
            if not channel.cut:
                channel.messages.clear()
                channel.news = False
                return channel
        raise CannotSubscribe

    def _subscribed(self, prefix: bytes) -> Channel:
        channel = connection = None
        try:
            with self._state:
                if self._connection is None:
                    self._connection = self._connections.connect()
                elif self._idle[prefix]:
                    channel = self._idle[prefix].pop()
                    if self.is_doubtful():
                        channel.subscribed = False
                        self._send_subscribe(self._connection, channel.name)
                connection = self._connection
                if channel is None:
                    channel = Channel(prefix)
                    self._channels[channel.name] = channel
                    self._send_subscribe(connection, channel.name)
        except (RedisError, OSError) as error:
            self._cut(connection)
            raise CannotSubscribe from error
        deadline = clock.now() + SUBSCRIBE_CONFIRM_SECONDS
        try:
            while not channel.subscribed and not channel.cut:
                if clock.now() > deadline:
                    # It was perhaps dropped on the way: the other waiters hear nothing either.
                    self._cut(connection)
                    raise CannotSubscribe
                self.listen(channel, deadline)
        except BaseException:
            self.leave(channel, keep=False)
            raise
        return channel

    def leave(self, channel: Channel, *, keep: bool) -> None:
        """Give a channel back. ``keep``: for the next waiter; otherwise it is unsubscribed."""
        if channel.waker is not None:
            channel.waker = None
            self._listener.remove(channel)
        with self._state:
            if keep and not channel.cut and channel.subscribed:
                self._idle[channel.prefix].append(channel)
                return
            if self._channels.pop(channel.name, None) is None:
                return  # It was cut.
            connection = self._connection
            try:
                if connection is not None:
                    self._send_unsubscribe(connection, channel.name)
                return
            except (RedisError, OSError):
                pass  # A connection that was cut delivers nothing either.
        self._cut(connection)

    def in_use(self) -> bool:
        """Whether a waiter of this process listens now."""
        return self._readers.reading()

    def wake_by(self, channel: Channel, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the channel has news, or was cut. Nobody has to listen."""
        channel.waker = wake
        if channel.news or channel.messages or channel.cut:
            wake()
        self._listener.add(channel)

    def _listen_for_all(self, channel: Channel, deadline: float) -> None:
        """`listen`, for the listener's channel, which has no messages."""
        if self._connection is None:
            time.sleep(NO_CONNECTION_SECONDS)
        else:
            self.listen(channel, deadline)

    def listen(self, channel: Channel, deadline: float) -> None:
        """Return when the channel has news, when the connection was cut, or at the deadline."""
        self._readers.listen(channel, deadline, self._read)

    def _read(self, channel: Channel, deadline: float) -> None:
        connection = self._connection
        whole = True
        try:
            if connection is None:
                raise RedisConnectionError("the subscriber's connection was cut")
            while not channel.news:
                left = deadline - clock.now()
                if left <= 0:
                    return
                if unless_closed(arrives, connection, left):
                    whole = False
                    self._deliver(unless_closed(read_message, connection), channel)
                    whole = True
        except (RedisConnectionError, OSError):
            self._cut(connection)
            channel.cut = channel.news = True
        except RedisError as error:
            self._cut(connection)
            self._refused(error)
        except BaseException:
            if not whole:
                # Interrupted (for example by a soft time limit) between reading a message and
                # delivering it: its waiter must ask again, and learns that by the cut.
                self._cut(connection)
            raise

    def _deliver(self, message: Sequence[Any], reader: Channel) -> None:
        self._heard = clock.now()
        try:
            kind, channel = message[0], self._channels.get(message[1])
        except (IndexError, TypeError) as error:
            raise RedisConnectionError("what came is no message") from error
        if channel is None:
            return
        if kind == self.delivers:
            channel.messages.append(message[2])
        elif kind == self.confirms:
            channel.subscribed = True
        elif not self._ended(kind, channel):
            return
        channel.news = True
        if channel is not reader:
            channel.wake()

    def _send_subscribe(self, connection: Any, name: bytes) -> None:
        send_words(connection, b"SUBSCRIBE", name)

    def _send_unsubscribe(self, connection: Any, name: bytes) -> None:
        send_words(connection, b"UNSUBSCRIBE", name)

    def _refused(self, error: RedisError) -> None:
        """The server has answered with an error, and its connection is closed."""
        raise self._client.unavailable(error) from error

    def _ended(self, kind: bytes, channel: Channel) -> bool:
        """Whether the server has ended the subscription; `Channel.cut` is set then."""
        return False

    def _cut(self, connection: Any) -> None:
        """Close the connection and notify all waiters, which must subscribe on another one."""
        with self._state:
            if self._connection is not connection:
                return  # Another thread has done it.
            self._connection = None
            channels = list(self._channels.values())
            self._channels.clear()
            self._idle.clear()
        for channel in channels:
            channel.cut = True
            channel.notify()
        if connection is not None:
            connection.disconnect()


def _new_process() -> None:
    for subscriber in _all:
        # Otherwise the parent's subscriptions outlive it, and locks are handed to its dead waiters.
        subscriber._connections.close_inherited()
        subscriber.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
