"""Connections for scripts: from the cache's own pool, a few of them kept at hand."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from ... import clock

pack: Callable[[Any], Any] | None
try:
    from hiredis import pack_command as pack
except ImportError:  # redis-py packs in Python then.
    pack = None

__all__ = ["Connections", "arrives"]

PING = b"*1\r\n$4\r\nPING\r\n"
"""sent before what is to be answered last: of its clients the server first writes to those for whom
it had nothing until the end"""
PATIENCE = 5.0
"""seconds to wait for a connection of an exhausted pool; each is in use for one script only"""
AT_HAND = 8
"""connections kept at hand, at most, and at most this fraction of the pool's"""
FRESH = 0.5
"""seconds for which a connection at hand needs no look whether the server has closed it"""
FULL = "Too many connections"
"""what a pool says that has no more to give; only later releases of redis-py have a class for it"""

ATTRIBUTE = "_django_tasklock_connections"

_all: WeakSet[Connections] = WeakSet()


class Connections:
    """Sends one command and reads its reply, on a connection that nobody else uses meanwhile.

    A pool looks at each connection when it hands it out and when it takes it back, which costs
    as much as the whole rest of a call. One that was in use a moment ago needs no such look.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self._most = min(AT_HAND, getattr(pool, "max_connections", 0) // AT_HAND)
        self.start()
        _all.add(self)

    @classmethod
    def of(cls, pool: Any) -> Connections:
        """The connections of a pool, the same for every store that uses it: what is at hand
        counts as taken there."""
        own = vars(pool).get(ATTRIBUTE)
        if own is None:
            own = vars(pool).setdefault(ATTRIBUTE, cls(pool))
        return own  # type: ignore[no-any-return]

    def start(self) -> None:
        """Forget all connections: in a new process they are the parent's."""
        self._at_hand: deque[tuple[Any, float]] = deque()
        self._private: Any = None

    def exchange(
        self,
        command: tuple[Any, ...],
        *,
        again: bool,
        private: bool = False,
        last: bool = False,
        meanwhile: Callable[[], object] = tuple,
    ) -> Any:
        """The reply to ``command``, which may be sent ``again`` if the pool's own policy says so.

        ``private``: on the connection of the renewal thread. ``last``: the server answers after
        it has told whom the command tells, and not before. ``meanwhile`` is called while the
        server is at it, each time that it is asked. Raises what redis-py raises.
        """
        connection = self._own() if private else self._take(look=not again)
        whole = False
        try:
            if again and connection.retry.get_retries():
                reply = connection.retry.call_with_retry(
                    lambda: _exchange(connection, command, last, meanwhile),
                    lambda _: connection.disconnect(),
                )
            else:
                reply = _exchange(connection, command, last, meanwhile)
            whole = True
            return reply
        except ResponseError:
            whole = True
            raise
        finally:
            if not private:
                self._give(connection, whole)
            elif not whole:
                connection.disconnect()

    def _take(self, *, look: bool) -> Any:
        with suppress(IndexError):
            connection, used = self._at_hand.pop()
            # What is not sent twice must not be sent to a connection that is cut already: it
            # would look as if it had been carried out.
            if clock.now() - used < FRESH and not (look and _is_cut(connection)):
                return connection
            self.pool.release(connection)
        give_up = 0.0
        while True:
            try:
                return self.pool.get_connection()
            except RedisConnectionError as error:
                if FULL not in str(error):
                    raise
                moment = clock.now()
                give_up = give_up or moment + PATIENCE
                if moment > give_up:
                    raise
                time.sleep(random.uniform(0.001, 0.01))

    def _give(self, connection: Any, whole: bool) -> None:
        if whole and len(self._at_hand) < self._most:
            self._at_hand.append((connection, clock.now()))
            return
        if not whole:
            # Whatever interrupted us (a soft time limit, say), an unread reply must not become
            # the next caller's.
            connection.disconnect()
            # The others may have been cut as well: the pool will look at them.
            with suppress(IndexError):
                while True:
                    self.pool.release(self._at_hand.pop()[0])
        self.pool.release(connection)

    def _own(self) -> Any:
        """A connection outside the pool: the renewal thread neither waits for the others, nor
        shares a socket with them, which under gevent and eventlet belongs to one thread."""
        if self._private is None:
            self._private = self.pool.connection_class(**self.pool.connection_kwargs)
        return self._private


def arrives(connection: Any, seconds: float) -> bool:
    """Whether something to read, or the end of the connection, comes off the wire in time.

    What was read and not yet parsed does not count, as it does in redis-py's ``can_read``, which
    asks the system three times where this asks once.
    """
    socket = getattr(connection, "_sock", None)
    # There is no poll under eventlet, and TLS has a buffer of its own.
    if socket is None or hasattr(socket, "pending") or not hasattr(select, "poll"):
        return bool(connection.can_read(timeout=seconds))
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _is_cut(connection: Any) -> bool:
    try:
        return arrives(connection, 0)
    except (RedisError, OSError, ValueError):
        return True


def _exchange(
    connection: Any, command: tuple[Any, ...], last: bool, meanwhile: Callable[[], object]
) -> Any:
    # What redis-py does as well, after a look at the type of each argument.
    pieces = connection.pack_command(*command) if pack is None else (pack(command),)
    connection.send_packed_command((PING + b"".join(pieces),) if last else pieces)
    meanwhile()
    if last:
        with suppress(ResponseError):  # Whatever the answer is.
            connection.read_response()
    return connection.read_response()


def _new_process() -> None:
    for connections in _all:
        connections.start()
        # All else redis-py makes anew by itself. But another thread may have held this in the
        # moment of the fork, and it is not there to give it back.
        connections.pool._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
