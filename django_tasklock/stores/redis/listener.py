"""The connections on which a process hears which locks are handed to its waiters."""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import exceptions as errors

from ..._compat import redis as compat
from ..._values import clock
from ..._values.processes import OfProcess
from ..._values.tokens import TOKEN_CHARACTERS, new_token
from ..base import CannotSubscribe
from .connections import Client, raise_of_handler

# The news that a waiter is the next, and does not know of all holders: see hand_over.lua.
ASK_AGAIN = b"?"
# How long to wait for the server's confirmation of a subscription.
CONFIRM_SECONDS = 5.0
# How many connections are tried: the first may be cut at this moment.
SUBSCRIBE_ATTEMPTS = 3
# After so long a silence the server is asked for a sign of life: a connection may be dropped on the
# way without a word. After another one it is cut, and also if nobody waits any more. What nobody
# has read for so long is not used again.
SILENCE_SECONDS = 10.0
# So many waiters of a process have a connection each, and read it themselves.
MOST_ALONE = 8
# Of how many waiters, which could not leave the queue, a hand-over is passed on.
MOST_ABANDONED = 1000

_UNREACHABLE = (errors.ConnectionError, errors.TimeoutError, OSError, RuntimeError)


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
        with suppress(RuntimeError):  # It is awake, or another thread has just woken it.
            self._wakeup.release()

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
    # Whether the server was asked for a sign of life, and has given none yet.
    asked = False

    def __init__(self, *, threaded: bool) -> None:
        # Whether a thread reads it. Otherwise the only waiter does.
        self.threaded = threaded
        # When the server said something, or was asked.
        self.heard = clock.now()

    @property
    def fresh(self) -> bool:
        """Whether it is subscribed, and was not silent for long."""
        return self.subscribed and clock.now() < self.heard + SILENCE_SECONDS


class Listener:
    """Hears for waiters of a process, on one channel.

    A waiter that is the only one reads the connection itself: to wake it from another thread would
    take a quarter of the time of a hand-over. For several, and for those on an event loop, a thread
    reads while somebody waits. Under gevent and eventlet that is a greenlet beside the waiters.
    """

    def __init__(self, client: Client, prefix: bytes, *, threaded: bool) -> None:
        """Begin without waiters.

        Args:
            client: makes the connections.
            prefix: what the names of channels begin with.
            threaded: there is always a thread.
        """
        self._client, self._prefix, self._threaded = client, prefix, threaded
        self.id = new_token().encode()
        """the channel's name, after the prefix"""
        self._hearings: dict[bytes, Hearing] = {}
        # What to do with news for those that may be in the queue, while nobody waits any more.
        self._abandoned: dict[bytes, Callable[[bytes], None]] = {}
        # One at most. (In a dict, because `setdefault` and `pop` are never done by halves.)
        self._lines: dict[str, _Line] = {}

    @property
    def free(self) -> bool:
        """Whether it can listen for one more waiter."""
        return not self._hearings or self._has_thread

    @property
    def subscribed(self) -> bool:
        """Whether the server has confirmed the subscription, and is there still."""
        line = self._lines.get("")
        return line is not None and line.fresh

    @property
    def _has_thread(self) -> bool:
        line = self._lines.get("")
        return self._threaded or (line is not None and line.threaded)

    def hears(self, hearing: Hearing) -> bool:
        """Whether it listens for a waiter."""
        return hearing.token in self._hearings

    def take(self, hearing: Hearing) -> bool:
        """Listen for a waiter, if there is no other one, or a thread reads for all. Returns whether
        it is so."""
        self._hearings[hearing.token] = hearing
        taken = len(self._hearings) == 1 or self._has_thread
        if not taken:
            self._hearings.pop(hearing.token)
        return taken

    def join(self, hearing: Hearing) -> None:
        """Listen for a waiter from now on.

        Raises `CannotSubscribe` if no connection can be made, and `StoreUnavailable` if the server
        refuses to subscribe.
        """
        self._hearings[hearing.token] = hearing
        deadline = clock.now() + CONFIRM_SECONDS
        try:
            for _ in range(SUBSCRIBE_ATTEMPTS):
                hearing.cut = False
                line = self._line()
                if not line.threaded and line.subscribed and not line.fresh:
                    self._end(line)  # Nobody has read it for long.
                while not line.over and (left := deadline - clock.now()) > 0:
                    if line.subscribed:
                        return
                    self.listen(hearing, left)
                if not line.over:
                    self._end(line)
                    break
            raise line.error or errors.ConnectionError("the subscription is not confirmed")
        except BaseException as error:
            self.leave(hearing)
            raise_of_handler(error)
            if isinstance(error, _UNREACHABLE):
                raise CannotSubscribe from error
            if isinstance(error, errors.RedisError):
                raise self._client.unavailable(error) from error
            raise

    def listen(self, hearing: Hearing, seconds: float) -> None:
        """Return when a waiter was told something, or after so long, or earlier."""
        line = self._lines.get("")
        if line is None or line.threaded:
            hearing.sleep(seconds)
        else:
            self._read(line, seconds)

    def leave(self, hearing: Hearing) -> None:
        """Listen no more for a waiter that is not in the queue any more."""
        self._hearings.pop(hearing.token, None)

    def abandon(self, hearing: Hearing, pass_on: Callable[[bytes], None]) -> None:
        """The same for one that may still be there: ``pass_on`` gets what it hears from now on."""
        self._abandoned[hearing.token] = pass_on
        with suppress(RuntimeError):  # No thread is to be had: the connection is closed.
            self.read_by_thread()
        self._hearings.pop(hearing.token, None)
        if len(self._abandoned) > MOST_ABANDONED:
            self._abandoned.pop(next(iter(self._abandoned)), None)

    def read_by_thread(self) -> None:
        """Have a thread read, and not the waiter. Raises `RuntimeError` if none can be started."""
        line = self._lines.get("")
        if line is not None and not line.threaded:
            self._start_thread(line)

    def close_idle(self) -> None:
        """Close the connection if nobody waits."""
        line = self._lines.get("")
        if line is not None and not self._hearings:
            self._end(line)

    def close_inherited(self) -> None:
        """In a forked child: otherwise the parent's subscription outlives it, and locks are handed
        to its dead waiters."""
        for line in list(self._lines.values()):
            if line.connection is not None:
                compat.close_inherited(line.connection)

    def _line(self) -> _Line:
        """The one that there is, or a new one."""
        line = self._lines.get("")
        if line is None:
            made = _Line(threaded=self._threaded or len(self._hearings) > 1)
            line = self._lines.setdefault("", made)
            if line is made and line.threaded:
                self._start_thread(line)
        return line

    def _start_thread(self, line: _Line) -> None:
        try:
            line.threaded = True
            # Not a `threading.Thread`: an exception from a signal handler while it starts would
            # leave a lock held that it needs.
            _thread.start_new_thread(self._read_for_all, (line,))
        except BaseException:
            self._end(line)
            raise

    def _read_for_all(self, line: _Line) -> None:
        with suppress(BaseException):  # The server's error is in `line.error`.
            while not line.over:
                self._read(line, SILENCE_SECONDS)

    def _read(self, line: _Line, seconds: float) -> None:
        """Connect, or deliver one message if it arrives within ``seconds``."""
        try:
            if line.connection is None:
                line.connection = self._connected()
                compat.send_words(line.connection, b"SUBSCRIBE", self._prefix + self.id)
            elif compat.unless_closed(
                compat.message_arrives, line.connection, min(seconds, SILENCE_SECONDS)
            ):
                self._deliver(compat.unless_closed(compat.read_message, line.connection), line)
                line.heard, line.asked = clock.now(), False
            elif clock.now() >= line.heard + SILENCE_SECONDS:
                if line.asked or not self._hearings:
                    raise errors.ConnectionError("nobody is there any more")
                compat.send_words(line.connection, b"PING")
                line.heard, line.asked = clock.now(), True
        except (errors.RedisError, OSError) as error:
            # Not the error itself: its traceback would keep the frames of the block that reads
            # here, and with them what the block holds, until the next garbage collection.
            line.error = type(error)(*error.args)
            self._end(line)
            raise_of_handler(error)
        except BaseException:
            self._end(line)
            raise

    def _end(self, line: _Line) -> None:
        line.subscribed, line.over = False, True
        if self._lines.get("") is line:
            self._lines.pop("", None)
        if line.connection is not None:
            line.connection.disconnect()  # That wakes its thread.
        for hearing in [*self._hearings.values()]:
            hearing.hear(ASK_AGAIN)

    def _connected(self) -> Any:
        connection = self._client.new_connection(health_check_interval=0)
        try:
            compat.connect(connection)
        except BaseException:
            connection.disconnect()
            raise
        compat.never_reconnect(connection)
        return connection

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


def listeners_of(client: Client, prefix: bytes) -> OfProcess[list[Listener]]:
    """Those of a process: `MOST_ALONE` for one waiter each, and the last for all others."""

    def make() -> list[Listener]:
        return [Listener(client, prefix, threaded=n == MOST_ALONE) for n in range(MOST_ALONE + 1)]

    return OfProcess(make, lambda made: [*map(Listener.close_inherited, made)])
