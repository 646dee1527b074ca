"""One connection on which the server tells this process what was published on a channel."""

from __future__ import annotations

from typing import Any

from redis import exceptions as errors

from ..._compat import redis as compat
from ..._values import clock
from .connections import PING, Client

# After so long a silence the server is asked for a sign of life: a connection may be dropped on the
# way without a word. After another one it is cut, and also if nobody waits any more. What nobody
# has read for so long is not used again.
SILENCE_SECONDS = 10.0


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
