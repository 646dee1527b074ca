"""Who hears which locks are handed to the waiters of a process, and who reads the connection."""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import exceptions as errors

from ..._compat import redis as compat
from ..._values import clock
from ..._values.interruptions import Bell
from ..._values.processes import OfProcess
from ..._values.tokens import TOKEN_CHARACTERS, new_token
from ..base import CannotSubscribe
from .connections import PING, Client, raise_of_handler

# The news that a waiter is the next, and does not know of all holders: see hand_over.lua.
ASK_AGAIN = b"?"
# After so long a silence the server is asked for a sign of life: a connection may be dropped on the
# way without a word. After another one it is cut, and also if nobody waits any more. What nobody
# has read for so long is not used again.
SILENCE_SECONDS = 10.0
# How long to wait for the server's confirmation of a subscription.
CONFIRM_SECONDS = 5.0
# How many connections are tried: the first may be cut at this moment.
SUBSCRIBE_ATTEMPTS = 3
# So many waiters of a process have a connection each, and read it themselves.
MOST_ALONE = 8
# Of how many waiters, which could not leave the queue, a hand-over is passed on.
MOST_REPLACED = 1000

_UNREACHABLE = (errors.ConnectionError, errors.TimeoutError, OSError, RuntimeError)


class Subscription:
    """One connection that is subscribed, and what became of it.

    One waiter or one thread reads it. Any thread may end it, which wakes the one that reads.

    Attributes:
        threaded: whether a thread reads it; otherwise the only waiter does.
        subscribed: whether the server has confirmed the subscription.
        over: whether it was ended.
        error: why it was ended.
    """

    def __init__(self, client: Client, channel: bytes, *, threaded: bool) -> None:
        """Connects to nothing yet. ``threaded``: a thread is to read it."""
        self.threaded = threaded
        self.subscribed = False
        self.over = False
        self.error: BaseException | None = None
        self.connection: Any = None
        # When the server said something, or was asked.
        self.heard = clock.now()
        # Whether the server was asked for a sign of life, and has given none yet.
        self._asked = False
        self._client, self._channel = client, channel

    @property
    def silent(self) -> bool:
        """Whether the server has said nothing for long."""
        return clock.now() >= self.heard + SILENCE_SECONDS

    def read(self, seconds: float) -> list[Any] | None:
        """Connect; or return what the server says, beginning with the kind of message, if something
        arrives within ``seconds``.

        It may return earlier. Raises what redis-py raises.
        """
        if self.connection is None:
            self.connection = self._client.new_connection(health_check_interval=0)
            compat.connect(self.connection)
            compat.never_reconnect(self.connection)
            compat.send(self.connection, compat.pack((b"SUBSCRIBE", self._channel)))
            return None
        said = compat.next_message(self.connection, min(seconds, SILENCE_SECONDS))
        if said is not None:
            self.heard, self._asked = clock.now(), False
        if type(said) is not list or not said:
            return None
        if said[0] == b"subscribe":
            self.subscribed = True
        return said

    def ping(self) -> None:
        """Ask for a sign of life. Raises ``ConnectionError`` if the last such question has got no
        answer."""
        if self._asked:
            raise errors.ConnectionError("the server is not there any more")
        compat.send(self.connection, PING)
        self.heard, self._asked = clock.now(), True

    def end(self) -> None:
        """Close the connection."""
        self.subscribed, self.over = False, True
        if self.connection is not None:
            self.connection.disconnect()


class Hearing:
    """What one waiter has heard, and what wakes it.

    Attributes:
        news: what was published to it, and when that was heard.
        cut: whether it has to ask again.
        bell: by which the waiter sleeps.
    """

    def __init__(self, token: str) -> None:
        self.token = token.encode()
        self.news: deque[tuple[bytes, float]] = deque()
        self.cut = False
        self.bell = Bell()

    def hear(self, news: bytes) -> None:
        """Note what was published to it; `ASK_AGAIN`, also that the connection was cut."""
        if news == ASK_AGAIN:
            self.cut = True
        else:
            self.news.append((news, clock.now()))
        self.bell.ring()


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
        # The channel's name, after the prefix.
        self.id = new_token().encode()
        self._hearings: dict[bytes, Hearing] = {}
        # For waiters that have gone, and may be in the queue still: what to do with their news.
        self._replaced: dict[bytes, Callable[[bytes], None]] = {}
        # One at most, under "": each step of a dict is one call of a function in C.
        self._held: dict[str, Subscription] = {}

    @property
    def free(self) -> bool:
        """Whether it can listen for one more waiter."""
        return not self._hearings or self._has_thread

    @property
    def subscribed(self) -> bool:
        """Whether the server has confirmed the subscription, and is there still."""
        subscription = self._held.get("")
        return subscription is not None and subscription.subscribed and not subscription.silent

    @property
    def _has_thread(self) -> bool:
        subscription = self._held.get("")
        return self._threaded or (subscription is not None and subscription.threaded)

    def hears(self, hearing: Hearing) -> bool:
        """Whether it listens for a waiter."""
        return hearing.token in self._hearings

    def add(self, hearing: Hearing) -> bool:
        """Listen for a waiter, if there is no other one, or a thread reads for all. Returns whether
        it does."""
        self._hearings[hearing.token] = hearing
        added = len(self._hearings) == 1 or self._has_thread
        if not added:
            self.remove(hearing)
        return added

    def remove(self, hearing: Hearing) -> None:
        """Listen no more for a waiter that is not in the queue any more."""
        self._hearings.pop(hearing.token, None)

    def replace(self, hearing: Hearing, pass_on: Callable[[bytes], None]) -> None:
        """Listen no more for a waiter that may be in the queue still: ``pass_on`` gets what is
        published to it from now on."""
        self._replaced[hearing.token] = pass_on
        with suppress(RuntimeError):  # No thread is to be had: the connection is closed.
            self.read_by_thread()
        self.remove(hearing)
        if len(self._replaced) > MOST_REPLACED:
            self._replaced.pop(next(iter(self._replaced)), None)

    def subscribe(self, hearing: Hearing) -> None:
        """Listen for a waiter, and return when the server has confirmed the subscription.

        Raises `CannotSubscribe` if no connection can be made, and `StoreUnavailable` if the server
        refuses to subscribe.
        """
        self._hearings[hearing.token] = hearing
        try:
            self._until_subscribed(hearing)
        except BaseException as error:
            self.remove(hearing)
            raise_of_handler(error)
            if isinstance(error, _UNREACHABLE):
                raise CannotSubscribe from error
            if isinstance(error, errors.RedisError):
                raise self._client.unavailable(error) from error
            raise

    def listen(self, hearing: Hearing, seconds: float) -> None:
        """Return when a waiter was told something, or after so long, or earlier."""
        subscription = self._held.get("")
        if subscription is None or subscription.threaded:
            hearing.bell.sleep(seconds)
        else:
            self._read(subscription, seconds)

    def read_by_thread(self) -> None:
        """Have a thread read, and not the waiter. Raises `RuntimeError` if none can be started."""
        if (subscription := self._held.get("")) is not None and not subscription.threaded:
            self._start_thread(subscription)

    def close_idle(self) -> None:
        """Close the connection if nobody waits."""
        if (subscription := self._held.get("")) is not None and not self._hearings:
            self._end(subscription)

    def close_inherited(self) -> None:
        """In a forked child: otherwise the parent's subscription outlives it, and locks are handed
        to its dead waiters. The parent's end stays open: see `RedisConnections`."""
        if (subscription := self._held.get("")) is not None:
            subscription.end()

    def _until_subscribed(self, hearing: Hearing) -> None:
        deadline = clock.now() + CONFIRM_SECONDS
        for _ in range(SUBSCRIBE_ATTEMPTS):
            hearing.cut = False
            subscription = self._subscription()
            if subscription.subscribed and subscription.silent and not subscription.threaded:
                self._end(subscription)  # Nobody has read it for long.
            while not subscription.over:
                if subscription.subscribed:
                    return
                left = deadline - clock.now()
                if left <= 0:
                    self._end(subscription)
                    raise errors.ConnectionError("the subscription is not confirmed")
                self.listen(hearing, left)
        raise subscription.error or errors.ConnectionError("the subscription was ended")

    def _subscription(self) -> Subscription:
        """The one that there is, or a new one."""
        found = self._held.get("")
        if found is None:
            threaded = self._threaded or len(self._hearings) > 1
            made = Subscription(self._client, self._prefix + self.id, threaded=threaded)
            found = self._held.setdefault("", made)
            if found is made and threaded:
                self._start_thread(made)
        return found

    def _start_thread(self, subscription: Subscription) -> None:
        try:
            subscription.threaded = True
            # Not a `threading.Thread`: an exception from a signal handler while it starts would
            # leave a lock held that it needs.
            _thread.start_new_thread(self._read_for_all, (subscription,))
        except BaseException:
            self._end(subscription)
            raise

    def _read_for_all(self, subscription: Subscription) -> None:
        with suppress(BaseException):  # The server's error is in `subscription.error`.
            while not subscription.over:
                self._read(subscription, SILENCE_SECONDS)

    def _read(self, subscription: Subscription, seconds: float) -> None:
        """Connect, or deliver one message if it arrives within ``seconds``."""
        try:
            said = subscription.read(seconds)
            if said is not None:
                self._deliver(said)
            elif subscription.silent:
                if not self._hearings:
                    raise errors.ConnectionError("nobody waits any more")
                subscription.ping()
        except (errors.RedisError, OSError) as error:
            # Not the error itself: its traceback would keep the frames of the block that reads
            # here, and with them what the block holds, until the next garbage collection.
            subscription.error = type(error)(*error.args)
            self._end(subscription)
            raise_of_handler(error)
        except BaseException:
            self._end(subscription)
            raise

    def _end(self, subscription: Subscription) -> None:
        # First, so that nobody finds one that an interruption has ended by halves.
        if self._held.get("") is subscription:
            self._held.pop("", None)
        subscription.end()
        for hearing in [*self._hearings.values()]:
            hearing.hear(ASK_AGAIN)

    def _deliver(self, said: list[Any]) -> None:
        kind, published = said[0], said[-1]
        if kind == b"subscribe":
            for hearing in [*self._hearings.values()]:
                hearing.bell.ring()
        elif kind == b"message":
            token, news = published[:TOKEN_CHARACTERS], published[TOKEN_CHARACTERS:]
            if (waiting := self._hearings.get(token)) is not None:
                waiting.hear(news)
            # Looked at last: the waiter may be replaced at this moment.
            if (pass_on := self._replaced.get(token)) is not None:
                pass_on(news)


def listeners_of(client: Client, prefix: bytes) -> OfProcess[list[Listener]]:
    """Those of a process: `MOST_ALONE` for one waiter each, and the last for all others."""

    def make() -> list[Listener]:
        return [Listener(client, prefix, threaded=n == MOST_ALONE) for n in range(MOST_ALONE + 1)]

    return OfProcess(make, lambda made: [*map(Listener.close_inherited, made)])
