"""Connections for scripts: our own, beside those of the cache's pool."""

from __future__ import annotations

import itertools
import math
import os
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet, ref

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ... import clock
from .connections import close_inherited, exchange, is_cut, new_connection

__all__ = ["Connections"]

PATIENCE = 5.0
"""seconds to wait for a connection when all are in use; each is in use for one script only"""
FRESH = 0.5
"""seconds for which an idle connection needs no look whether the server has closed it"""
DOUBTFUL = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)
"""after these errors the idle connections may be broken as well, or lead to a demoted server"""

ATTRIBUTE = "_django_tasklock_connections"

_all: WeakSet[Connections] = WeakSet()


class Connections:
    """Sends one command and reads its reply, on a connection that nobody else uses meanwhile.

    An exception may come between any two instructions here: from a signal handler, or a soft time
    limit. So nothing must be undone. A connection is idle, or belongs to one call; it becomes idle
    again only after the reply to that very call was read. Any other is closed, at the latest by
    the garbage collector, and the number of connections is that of those that still exist.

    It uses none of the pool's own connections. A pool loses one where a call is interrupted while
    it is handed out, and looks at each twice a call, which costs as much as the rest of the call.
    """

    def __init__(self, pool: Any, timeouts: dict[str, float | None]) -> None:
        self._pool = pool
        self._timeouts = timeouts
        self._most = getattr(pool, "max_connections", None) or math.inf
        self._patience = getattr(pool, "timeout", None) or PATIENCE
        self._start()
        _all.add(self)

    @classmethod
    def of(cls, pool: Any, timeouts: dict[str, float | None]) -> Connections:
        """The connections beside a pool, the same for every store with these timeouts, which are
        overrides for `new_connection`."""
        known = vars(pool).setdefault(ATTRIBUTE, {})
        key = tuple(timeouts.items())
        own = known.get(key)
        if own is None:
            own = known.setdefault(key, cls(pool, timeouts))
        return own  # type: ignore[no-any-return]

    def _start(self) -> None:
        self._idle: deque[tuple[Any, float]] = deque()
        self._private = threading.local()
        self._made: dict[ref[Any], bool] = {}  # Whether each one is private.
        self._numbers = itertools.count(secrets.randbits(48))

    def new_process(self) -> None:
        """Forget all connections, in a new process: they are the parent's."""
        inherited = [made() for made in list(self._made)]
        self._start()
        for connection in inherited:
            if connection is not None:
                close_inherited(connection)

    def exchange(
        self,
        command: Sequence[bytes],
        *,
        again: bool,
        fresh: bool = False,
        private: bool = False,
        last: bool = False,
        meanwhile: Callable[[], object] = tuple,
    ) -> Any:
        """The reply to ``command``, sent ``again`` as often as the cache's retry policy says.

        The command gets a number as its last argument, and its reply is a list of the number and
        the answer, which is returned. ``fresh``: on a new connection, where one may be made.
        ``private``: on the connection of this very thread. ``last``: the server answers after it
        has told whom the command tells, and not before. ``meanwhile`` is called while the server
        is at it, each time that it is asked.

        Returns `NO_SCRIPT` where the server does not have the script. Raises what redis-py raises,
        and `NotSent`. A reply to another command is a ``ConnectionError``.
        """
        number = b"%d" % next(self._numbers)
        numbered = (*command, number)
        # Our connection is in here alone. In a variable it would live on in the traceback of an
        # interruption, for as long as anybody keeps that.
        own: list[Any] = []
        try:
            if not fresh or private or not self._make(own, private=False):
                self._take(own, private=private, look=fresh or not again)
            if again and own[0].retry.get_retries():
                reply = _retried(own[0], numbered, number, last, meanwhile)
            else:
                reply = exchange(own[0], numbered, number, last, meanwhile)
            self._keep(own, private)
            return reply
        except BaseException as error:
            self._close(own)
            if isinstance(error, DOUBTFUL):
                with suppress(IndexError):
                    while True:
                        self._close([self._idle.pop()[0]])
            raise

    def _take(self, own: list[Any], *, private: bool, look: bool) -> None:
        """Put a connection into ``own`` that nobody else has."""
        if private:
            # The renewal thread neither waits for the others, nor shares a socket with them, which
            # under gevent and eventlet belongs to one thread.
            if getattr(self._private, "connection", None) is None:
                self._make(own, private=True)
            else:
                own.append(self._private.connection)
                self._private.connection = None
            return
        give_up = 0.0
        while True:
            try:
                own += self._idle.pop()
            except IndexError:
                if self._make(own, private=False):
                    return
            else:
                # What is not sent twice is better not sent to a connection that is cut.
                trusted = clock.now() - own.pop() < FRESH and not look
                if trusted or not is_cut(own[0]):
                    return
                self._close(own)
                continue
            moment = clock.now()
            give_up = give_up or moment + self._patience
            if moment > give_up:
                raise RedisTimeoutError(f"Too many connections: all {self._most} are in use")
            time.sleep(random.uniform(0.001, 0.01))

    def _make(self, own: list[Any], *, private: bool) -> bool:
        """Put a new connection into ``own``; False if there are as many as the pool would have."""
        for made in list(self._made):
            if made() is None:
                self._made.pop(made, None)
        if not private and self._in_use() >= self._most:
            return False
        own.append(new_connection(self._pool, **self._timeouts))
        self._made[ref(own[0])] = private
        # Several threads may have come so far at once. Each counts the others, or is counted.
        if not private and self._in_use() > self._most:
            self._close(own)
            return False
        return True

    def _in_use(self) -> int:
        return list(self._made.values()).count(False)

    def _keep(self, own: list[Any], private: bool) -> None:
        if private:
            self._private.connection = own.pop()
        else:
            self._idle.append((own.pop(), clock.now()))

    def _close(self, own: list[Any]) -> None:
        if own:
            # Its place is free, though the exception may refer to it for a while.
            self._made.pop(ref(own[0]), None)
            own[0].disconnect()
            own.clear()


def _retried(connection: Any, *call: Any) -> Any:
    return connection.retry.call_with_retry(
        lambda: exchange(connection, *call), lambda _: connection.disconnect()
    )


def _new_process() -> None:
    for connections in _all:
        connections.new_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
