"""The store's own connections for scripts, beside those of the cache's pool."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet, ref

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..._compat.native_threads import this_thread
from ..._compat.redis import (
    close_inherited,
    connect,
    most_connections,
    pack,
    read,
    retried,
    retries,
    send,
)
from ..._values import clock
from ..._values.tokens import chance
from .connections import is_cut, new_connection
from .replicas import ReplicaWait

__all__ = ["Connections"]

IDLE_TRUST_SECONDS = 0.5
"""an idle connection that was used less than this ago is not checked for being closed"""
POOL_WAIT_SECONDS = 5.0
"""how long a call waits for a connection when all are in use; each is in use for one script only"""
CONNECTION_ERRORS = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)
"""after these the idle connections may be broken too, or belong to a server that was demoted"""
READ_ONLY = "-READONLY "
"""in the error of a script that wrote on a replica, before Redis 7: a plain ``ResponseError``"""

CONNECTIONS_ATTRIBUTE = "_django_tasklock_connections"

_all: WeakSet[Connections] = WeakSet()


class Connections:
    """Sends one command and reads its reply, on a connection that nobody else uses meanwhile.

    An exception from a signal handler (a soft time limit, for example) may come between any two
    instructions here. So the code needs no cleanup to be right: a connection is idle, or belongs to
    one call, and becomes idle again only after the reply to that call was read. Otherwise it is
    closed, at the latest by the garbage collector. Only connections that still exist are counted.

    The pool's own connections are not used. A pool loses a connection if a call is interrupted
    while it gets one, and checks each connection twice in each call, which costs as much as the
    rest of the call.
    """

    def __init__(self, pool: Any, timeouts: dict[str, float | None]) -> None:
        self._pool = pool
        self._timeouts = timeouts
        most, patience = most_connections(pool)
        self._max_connections = most or math.inf
        self._wait_seconds = patience or POOL_WAIT_SECONDS
        self._start()
        _all.add(self)

    @classmethod
    def of(cls, pool: Any, timeouts: dict[str, float | None]) -> Connections:
        """The connections beside a pool. Stores with the same pool and timeouts share them.

        ``timeouts`` are overrides for `new_connection`.
        """
        known = vars(pool).setdefault(CONNECTIONS_ATTRIBUTE, {})
        key = tuple(timeouts.items())
        own = known.get(key)
        if own is None:
            own = known.setdefault(key, cls(pool, timeouts))
        return own  # type: ignore[no-any-return]

    def _start(self) -> None:
        self._idle: deque[tuple[Any, float]] = deque()
        self._private = threading.local()
        self._made: dict[ref[Any], bool] = {}  # Each with whether it is private.
        self._numbers = itertools.count(secrets.randbits(48))

    def new_process(self) -> None:
        """In a forked child: forget all connections, which are the parent's."""
        inherited = [made() for made in list(self._made)]
        self._start()
        for connection in inherited:
            if connection is not None:
                close_inherited(connection)

    def close_idle(self) -> None:
        """Close the connections that no call uses now."""
        with suppress(IndexError):
            while True:
                self._close([self._idle.pop()[0]])

    def exchange(
        self,
        command: Sequence[bytes],
        *,
        again: bool,
        fresh: bool = False,
        private: bool = False,
        before: bytes = b"",
        meanwhile: Callable[[], object] = tuple,
        wait: ReplicaWait | None = None,
    ) -> Any:
        """Send a command and read its reply.

        The command gets a number as its last argument. The reply must be that number and the
        answer; any other is the reply to another command, and a ``ConnectionError``.

        Args:
            command: its words.
            again: whether it may be sent again, as often as the cache's retry policy says.
            fresh: use a new connection, unless there are too many.
            private: use the connection that only this thread uses.
            before: a packed command that is sent first; its reply is ignored.
            meanwhile: called while the server runs the command, each time that it is sent.
            wait: is sent right behind the command, and gets the server's answer.

        Returns:
            The answer; a ``NoScriptError`` if the server does not have the script.

        Raises what redis-py raises, and `NotSent`.
        """
        private = private or this_thread.renews
        numbered = (*command, b"%d" % next(self._numbers))
        # Only this list refers to the connection. A variable would keep it alive in the traceback
        # of an interruption, as long as that exists.
        own: list[Any] = []
        try:
            if not fresh or private or not self._make(own, private=False):
                self._take(own, private=private, look=fresh or not again)
            if again and retries(own[0]):
                once = partial(_exchange, own[0], numbered, before, meanwhile, wait)
                answer = retried(own[0], once)
            else:
                answer = _exchange(own[0], numbered, before, meanwhile, wait)
            if isinstance(answer, ResponseError) and not isinstance(answer, NoScriptError):
                raise answer
            self._keep(own, private)
            return answer
        except BaseException as error:
            self._failed(own, error)
            raise

    def exchange_many(
        self, commands: Sequence[Sequence[bytes]], *, fresh: bool, private: bool
    ) -> list[Any]:
        """`exchange` for several commands in one round trip; all of them may be sent again.

        Returns for each its answer, or the ``ResponseError`` that the server answered with.
        """
        private = private or this_thread.renews
        numbered = [(*command, b"%d" % next(self._numbers)) for command in commands]
        own: list[Any] = []
        try:
            if not fresh or private or not self._make(own, private=False):
                self._take(own, private=private, look=fresh)
            send(own[0], b"".join(pack(own[0], command) for command in numbered))
            answers = [_answer(own[0], command[-1]) for command in numbered]
            self._keep(own, private)
            return answers
        except BaseException as error:
            self._failed(own, error)
            raise

    def _failed(self, own: list[Any], error: BaseException) -> None:
        self._close(own)
        if isinstance(error, CONNECTION_ERRORS) or READ_ONLY in str(error):
            self.close_idle()

    def _take(self, own: list[Any], *, private: bool, look: bool) -> None:
        """Put a connection into ``own`` that no other call uses."""
        if private:
            # The renewal thread must not wait for the other threads. Under gevent and eventlet it
            # must not share a socket with them either.
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
                # A command that may not be sent twice needs a connection that is not cut.
                trusted = clock.now() - own.pop() < IDLE_TRUST_SECONDS and not look
                if trusted or not is_cut(own[0]):
                    return
                self._close(own)
                continue
            moment = clock.now()
            give_up = give_up or moment + self._wait_seconds
            if moment > give_up:
                raise RedisTimeoutError(
                    f"Too many connections: all {self._max_connections} are in use"
                )
            time.sleep(chance.uniform(0.001, 0.01))

    def _make(self, own: list[Any], *, private: bool) -> bool:
        """Put a new connection into ``own``; False if there are as many as the pool allows."""
        for made in list(self._made):
            if made() is None:
                self._made.pop(made, None)
        if not private and self._in_use() >= self._max_connections:
            return False
        own.append(new_connection(self._pool, **self._timeouts))
        self._made[ref(own[0])] = private
        # Several threads may be here at the same time. So each counts again, itself included.
        if not private and self._in_use() > self._max_connections:
            self._close(own)
            return False
        connect(own[0])
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
            # It does not count any more, even if the exception keeps it alive for a while.
            self._made.pop(ref(own[0]), None)
            own[0].disconnect()
            own.clear()


def _exchange(
    connection: Any,
    command: tuple[bytes, ...],
    before: bytes,
    meanwhile: Callable[[], object],
    wait: ReplicaWait | None,
) -> Any:
    packed = pack(connection, command)
    if before or wait is not None:
        packed = before + packed + (b"" if wait is None else wait.command)
    send(connection, packed)
    meanwhile()
    if before:
        read(connection)
    answer = _answer(connection, command[-1])
    if wait is not None:
        wait.answer(read(connection))
    return answer


def _answer(connection: Any, number: bytes) -> Any:
    """Read the answer in a script's reply, whose last argument was ``number``; see `Script`.

    It is a ``ResponseError`` if the server refused the script. Raises ``ConnectionError`` if it is
    the reply to another command.
    """
    reply = read(connection)
    if type(reply) is bytes:
        if reply.startswith(number + b" "):
            return reply[len(number) + 1 :]
    elif type(reply) is list and len(reply) == 2 and reply[0] == number:
        return reply[1]
    elif isinstance(reply, ResponseError):
        return reply
    raise RedisConnectionError("The reply belongs to another command")


def _new_process() -> None:
    for connections in _all:
        connections.new_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
