"""The connection on which a process hears which locks are handed to its waiters."""

from __future__ import annotations

import _thread
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..._compat.redis import (
    arrives,
    close_inherited,
    connect,
    never_reconnect,
    read_message,
    send_words,
    unless_closed,
)
from ..._values import clock
from ..._values.tokens import TOKEN_CHARACTERS, new_token
from ..base import CannotSubscribe
from .connections import Client

__all__ = ["ASK_AGAIN", "Hearing", "Listener"]

# The news that a waiter is the next, and does not know of all holders: see hand_over.lua.
ASK_AGAIN = b"?"
# How long to wait for the server's confirmation of a subscription.
CONFIRM_SECONDS = 5.0
# How many connections are tried: the first may be cut at this moment.
SUBSCRIBE_ATTEMPTS = 3
# After so long a silence the server is asked for a sign of life: a connection may be dropped on the
# way without a word. After another one it is cut. The thread ends if nobody waits any more.
SILENCE_SECONDS = 10.0
# Of how many waiters, which could not leave the queue, a hand-over is passed on.
MOST_ABANDONED = 1000

_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError, RuntimeError)

_all: WeakSet[Listener] = WeakSet()
# How often this process was forked.
_forks = 0


class Hearing:
    """What one waiter has heard, and what wakes it."""

    def __init__(self, token: str) -> None:
        self.token = token.encode()
        self.news: deque[tuple[bytes, float]] = deque()
        """what was published to it, and when that was heard"""
        self.cut = False
        """whether it has to ask again"""
        self._waker: Callable[[], None] | None = None
        # Not a threading.Event, which an exception from a signal handler may leave locked.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def hear(self, news: bytes) -> None:
        """Note what was published to it; `ASK_AGAIN`, also that the connection was cut."""
        if news == ASK_AGAIN:
            self.cut = True
        else:
            self.news.append((news, clock.now()))
        self.wake()

    def sleep(self, seconds: float) -> None:
        """Return when it was woken, or after so long."""
        self._wakeup.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """Wake it, now or when it next sleeps."""
        waker = self._waker
        if waker is not None:
            waker()
        if self._wakeup.locked():
            try:
                self._wakeup.release()
            except RuntimeError:
                pass  # Another thread has woken it at the same time.

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called whenever it is woken; also at once, if it would not sleep."""
        self._waker = wake
        if self.news or self.cut:
            wake()


class _Line:
    """One connection that is subscribed, and what became of it."""

    connection: Any = None
    subscribed = False
    over = False
    error: BaseException | None = None


class Listener:
    """Hears for all waiters of a process, on one channel, in one thread while somebody waits.

    Under gevent and eventlet that is a greenlet beside the waiters.
    """

    def __init__(self, client: Client, prefix: bytes) -> None:
        """``prefix``: what the names of channels begin with."""
        self._client, self._prefix = client, prefix
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """Begin without waiters, also in a new process: they are threads of the parent."""
        self.id = new_token().encode()
        """the channel's name, after the prefix"""
        self._hearings: dict[bytes, Hearing] = {}
        # What to do with news for those that may be in the queue, while nobody waits any more.
        self._abandoned: dict[bytes, Callable[[bytes], None]] = {}
        # One at most. (In a dict, because `setdefault` and `pop` are never done by halves.)
        self._lines: dict[str, _Line] = {}

    @property
    def busy(self) -> bool:
        """Whether somebody waits."""
        return bool(self._hearings)

    @property
    def subscribed(self) -> bool:
        """Whether the server has confirmed the subscription."""
        line = self._lines.get("")
        return line is not None and line.subscribed

    def join(self, hearing: Hearing) -> None:
        """Listen for a waiter from now on.

        Raises `CannotSubscribe` if no connection can be made, and `StoreUnavailable` if the server
        refuses to subscribe.
        """
        self._hearings[hearing.token] = hearing
        deadline, line = clock.now() + CONFIRM_SECONDS, _Line()
        try:
            for _ in range(SUBSCRIBE_ATTEMPTS):
                made = _Line()
                line = self._lines.setdefault("", made)
                if line is made:
                    # Not a `threading.Thread`: an exception from a signal handler while it starts
                    # would leave a lock held that it needs.
                    _thread.start_new_thread(self._listen, (line,))
                while not line.over and (left := deadline - clock.now()) > 0:
                    if line.subscribed:
                        return
                    hearing.sleep(left)
                self._cut(line)
                if not line.over:
                    break
            raise line.error or RedisConnectionError("the subscription is not confirmed")
        except BaseException as error:
            self.leave(hearing)
            if isinstance(error, _UNREACHABLE):
                self._cut(line)
                raise CannotSubscribe from error
            if isinstance(error, RedisError):
                raise self._client.unavailable(error) from error
            raise

    def leave(self, hearing: Hearing) -> None:
        """Listen no more for a waiter that is not in the queue any more."""
        self._hearings.pop(hearing.token, None)

    def abandon(self, hearing: Hearing, pass_on: Callable[[bytes], None]) -> None:
        """The same for one that may still be there: ``pass_on`` gets what it hears from now on."""
        self._abandoned[hearing.token] = pass_on
        self._hearings.pop(hearing.token, None)
        if len(self._abandoned) > MOST_ABANDONED:
            self._abandoned.pop(next(iter(self._abandoned)), None)

    def close_idle(self) -> None:
        """Close the connection if nobody waits."""
        line = self._lines.get("")
        if line is not None and not self._hearings:
            self._cut(line)

    def close_inherited(self) -> None:
        """In a forked child: otherwise the parent's subscription outlives it, and locks are handed
        to its dead waiters."""
        for line in self._lines.values():
            if line.connection is not None:
                close_inherited(line.connection)

    def _cut(self, line: _Line) -> None:
        if self._lines.get("") is line:
            self._lines.pop("", None)
        if line.connection is not None:
            line.connection.disconnect()  # That wakes its thread.

    def _listen(self, line: _Line) -> None:
        try:
            line.connection = self._connected()
            send_words(line.connection, b"SUBSCRIBE", self._prefix + self.id)
            self._read(line)
        except BaseException as error:
            line.error = error
        finally:
            line.subscribed, line.over = False, True
            self._cut(line)
            for hearing in [*self._hearings.values()]:
                hearing.hear(ASK_AGAIN)

    def _connected(self) -> Any:
        while True:
            forks, connection = _forks, self._client.new_connection(health_check_interval=0)
            try:
                connect(connection)
            except BaseException:
                connection.disconnect()
                raise
            if forks == _forks:
                never_reconnect(connection)
                return connection
            # A child that was forked meanwhile may have a copy of the socket, unknown to it.
            connection.disconnect()

    def _read(self, line: _Line) -> None:
        connection, asked = line.connection, False
        while self._lines.get("") is line:
            if unless_closed(arrives, connection, SILENCE_SECONDS):
                self._deliver(unless_closed(read_message, connection), line)
                asked = False
            elif asked or not self._hearings:
                return
            else:
                send_words(connection, b"PING")
                asked = True

    def _deliver(self, message: Any, line: _Line) -> None:
        kind = message[0] if type(message) is list and message else b""
        if kind == b"message":
            token, news = message[2][:TOKEN_CHARACTERS], message[2][TOKEN_CHARACTERS:]
            hearing = self._hearings.get(token)
            if hearing is not None:
                hearing.hear(news)
            # Looked at last: it may be abandoned at this moment.
            pass_on = self._abandoned.get(token)
            if pass_on is not None:
                pass_on(news)
        elif kind == b"subscribe":
            line.subscribed = True
            for hearing in [*self._hearings.values()]:
                hearing.wake()


def _before_fork() -> None:
    global _forks
    _forks += 1


def _new_process() -> None:
    for listener in _all:
        listener.close_inherited()
        listener.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_new_process)
