"""The ear of a process: one connection on which the lock is handed to whoever waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ... import clock
from ..base import CannotListen
from .client import Client
from .connections import arrives, close_inherited
from .mailbox import Mailbox
from .readers import Readers

__all__ = ["Listener"]

T = TypeVar("T")
_all: WeakSet[Listener] = WeakSet()
_forks = 0
"""how often this process was forked"""

TRIES = 3
"""connections on which to listen is tried: the first may have been cut while nobody read"""
CONFIRMATION = 5.0
"""seconds to wait for the server's word that we are subscribed"""
NEXT = b"="
"""how news begins that say who holds the lock, for who comes next"""


class Listener:
    """One listening connection a process, whatever the number of waiters.

    It has no thread: one of the waiters reads for all, and passes the task on when it leaves.
    Its connection is not one of the pool's, so that waiters never use up what releases need.
    """

    def __init__(self, client: Client, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix
        self._made: WeakSet[Any] = WeakSet()
        self.start()
        _all.add(self)

    def start(self) -> None:
        """Listen to nothing: in a new process all of it is the parent's."""
        self._connection: Any = None
        self._boxes: dict[bytes, Mailbox] = {}
        self._idle: list[Mailbox] = []
        self._state = threading.Lock()
        self._readers = Readers()

    def close_inherited(self) -> None:
        """In a forked child: let go of the parent's subscriptions, or they outlive the parent, and
        the lock is handed to its dead waiters."""
        for connection in list(self._made):
            close_inherited(connection)
        self._made.clear()

    def at_hand(self) -> bool:
        """Whether `join` has a mailbox to give that the server delivers to already."""
        return bool(self._idle)

    def join(self) -> Mailbox:
        """A mailbox that the server is known to deliver to.

        Raises `CannotListen` if there is no connection to be had, `StoreUnavailable` if the
        server is there and refuses.
        """
        for _ in range(TRIES):
            box = self._subscribed()
            if not box.cut:
                box.letters.clear()
                box.news = False
                return box
        raise CannotListen

    def _subscribed(self) -> Mailbox:
        box = connection = None
        try:
            with self._state:
                if self._connection is None:
                    self._connection = self._connect()
                elif self._idle:
                    box = self._idle.pop()
                connection = self._connection
                if box is None:
                    box = Mailbox(self._prefix)
                    self._boxes[box.channel] = box
                    connection.send_command("SUBSCRIBE", box.channel)
        except (RedisError, OSError) as error:
            self._cut(connection)
            raise CannotListen from error
        deadline = clock.now() + CONFIRMATION
        while not box.subscribed and not box.cut:
            if clock.now() > deadline:
                self.leave(box, keep=False)
                raise CannotListen
            self.listen(box, deadline)
        return box

    def leave(self, box: Mailbox, *, keep: bool) -> None:
        """Give the mailbox back; without ``keep`` nobody is to be told anything there."""
        self._readers.leave(box)
        with self._state:
            if keep and not box.cut and box.subscribed:
                self._idle.append(box)
                return
            self._boxes.pop(box.channel, None)
            connection = self._connection
            try:
                if connection is not None:
                    connection.send_command("UNSUBSCRIBE", box.channel)
                return
            except (RedisError, OSError):
                pass  # A connection that is cut delivers nothing either.
        self._cut(connection)

    def in_use(self) -> bool:
        """Whether somebody of this process listens now."""
        return self._readers.reading()

    def listen(self, box: Mailbox, deadline: float) -> None:
        """Return when the mailbox has something new, was cut off, or at the deadline."""
        self._readers.listen(box, deadline, self._read)

    def _read(self, box: Mailbox, deadline: float) -> None:
        connection = self._connection
        whole = True
        try:
            if connection is None:
                raise RedisConnectionError("the listening connection was cut")
            # What came off the wire with an earlier message.
            more = _unless_closed(connection.can_read, timeout=0)
            while not box.news:
                left = deadline - clock.now()
                if left <= 0:
                    return
                if more or _unless_closed(arrives, connection, left):
                    whole = False
                    self._deliver(_unless_closed(connection.read_response), box)
                    whole = True
                    if not box.news:
                        more = _unless_closed(connection.can_read, timeout=0)
                        if not more and self._readers.has_heir():
                            return
        except (RedisConnectionError, OSError):
            self._cut(connection)
            box.cut = box.news = True
        except RedisError as error:
            self._cut(connection)
            raise self._client.unavailable(error) from error
        except BaseException:
            if not whole:
                # Interrupted (by a soft time limit, say) on the way from the wire to a mailbox:
                # whoever that message was for must ask again.
                self._cut(connection)
            raise

    def _deliver(self, message: Sequence[Any], reader: Mailbox) -> None:
        kind, channel = message[0], message[1]
        box = self._boxes.get(channel)
        if box is None:
            return
        if kind == b"message":
            box.letters.append(message[2])
            if message[2].partition(b":")[2].startswith(NEXT):
                self._readers.comes_next(box)
        elif kind == b"subscribe":
            box.subscribed = True
        else:
            return
        box.news = True
        if box is not reader:
            box.ring()

    def _connect(self) -> Any:
        while True:
            connection, forks = self._client.new_connection(health_check_interval=0), _forks
            self._made.add(connection)
            try:
                connection.connect()
            except BaseException:
                connection.disconnect()
                raise
            if forks == _forks:
                # redis-py connects by itself where it finds a connection closed: to a server that
                # knows nothing of our channels, and another thread would read the replies.
                connection.connect = connection.connect_check_health = _was_cut
                return connection
            # A child that was forked meanwhile may have its socket, and not know it.
            connection.disconnect()

    def _cut(self, connection: Any) -> None:
        """Nothing more comes on this connection: all must listen anew, on another one."""
        with self._state:
            if self._connection is not connection:
                return  # Somebody else has noticed before.
            self._connection = None
            boxes = list(self._boxes.values())
            self._boxes.clear()
            self._idle.clear()
        for box in boxes:
            box.cut = True
            box.tell()
        if connection is not None:
            connection.disconnect()


def _was_cut(*_arguments: Any, **_options: Any) -> NoReturn:
    raise RedisConnectionError("the listening connection was cut")


def _unless_closed(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return call(*arguments, **options)
    except (AttributeError, TypeError, ValueError) as error:
        # Another thread could not send, and redis-py has closed the connection under our eyes.
        raise RedisConnectionError("the listening connection was closed") from error


def _before_fork() -> None:
    global _forks
    _forks += 1


def _new_process() -> None:
    for listener in _all:
        listener.close_inherited()
        listener.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_new_process)
