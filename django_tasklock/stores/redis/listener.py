"""The ear of a process: one connection on which the lock is handed to whoever waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ... import clock
from ..base import CannotListen
from .client import Client
from .mailbox import Mailbox

__all__ = ["Listener"]

T = TypeVar("T")
_all: WeakSet[Listener] = WeakSet()

TRIES = 3
"""connections on which to listen is tried: the first may have been cut while nobody read"""
CONFIRMATION = 5.0
"""seconds to wait for the server's word that we are subscribed"""


class Listener:
    """One listening connection a process, whatever the number of waiters.

    It has no thread: one of the waiters reads for all, and passes the task on when it leaves.
    Its connection is not one of the pool's, so that waiters never use up what releases need.
    """

    def __init__(self, client: Client, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix
        self.start()
        _all.add(self)

    def start(self) -> None:
        """Listen to nothing: in a new process all of it is the parent's."""
        self._connection: Any = None
        self._boxes: dict[bytes, Mailbox] = {}
        self._idle: list[Mailbox] = []
        self._state = threading.Lock()
        self._reader: Mailbox | None = None
        self._asleep: dict[Mailbox, None] = {}

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

    def listen(self, box: Mailbox, deadline: float) -> None:
        """Return when the mailbox has something new, was cut off, or at the deadline."""
        try:
            while not box.news:
                left = deadline - clock.now()
                if left <= 0:
                    return
                # An interruption may come between any two instructions: who reads is told by
                # one assignment, and taken back by whoever is named there.
                with self._state:
                    if self._reader is None:
                        self._reader = box
                if self._reader is box:
                    self._read(box, deadline)
                    self._reader = None
                else:
                    self._sleep(box, left)
        finally:
            box.news = False
            if self._reader is box:
                self._reader = None
            self._pass_on()

    def _sleep(self, box: Mailbox, seconds: float) -> None:
        """Until there is news, or until nobody reads any more."""
        try:
            self._asleep[box] = None
            if self._reader is not None:
                box.bell.acquire(timeout=seconds)
        finally:
            self._asleep.pop(box, None)

    def _read(self, box: Mailbox, deadline: float) -> None:
        connection = self._connection
        whole = True
        try:
            while not box.news:
                left = deadline - clock.now()
                if left <= 0:
                    return
                if connection is None:
                    raise RedisConnectionError("the listening connection was cut")
                if _unless_closed(connection.can_read, timeout=left):
                    whole = False
                    self._deliver(_unless_closed(connection.read_response))
                    whole = True
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

    def _deliver(self, message: Sequence[Any]) -> None:
        kind, channel = message[0], message[1]
        box = self._boxes.get(channel)
        if box is None:
            return
        if kind == b"subscribe":
            box.subscribed = True
            box.tell()
        elif kind == b"message":
            box.letters.append(message[2])
            box.tell()

    def _pass_on(self) -> None:
        # Somebody may be asleep though nobody reads any more: wake one, who will.
        if self._reader is None:
            for box in list(self._asleep):
                if box.bell.locked():
                    box.ring()
                    return

    def _connect(self) -> Any:
        pool = self._client.pool
        options = {**pool.connection_kwargs, "health_check_interval": 0, "protocol": 2}
        options["decode_responses"] = False
        connection = pool.connection_class(**options)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        connection.register_connect_callback(self._on_reconnect)
        return connection

    def _on_reconnect(self, connection: Any) -> None:
        # redis-py connects by itself when it finds a connection closed: to a server that knows
        # nothing of our channels.
        connection.disconnect()
        raise RedisConnectionError("the listening connection was cut")

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


def _unless_closed(call: Callable[..., T], **options: Any) -> T:
    try:
        return call(**options)
    except (AttributeError, TypeError, ValueError) as error:
        # Another thread could not send, and redis-py has closed the connection under our eyes.
        raise RedisConnectionError("the listening connection was closed") from error


def _new_process() -> None:
    for listener in _all:
        listener.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
