"""The store's own connections: one for each call, and the errors of calls."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from redis import exceptions as errors

from ..._compat import redis as compat
from ..._compat.native_threads import this_thread
from ..._compat.redis import NotSent, pack
from ..._values import clock
from ..._values.interruptions import interrupts
from ..._values.processes import OfProcess
from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from .replicas import ReplicaWait

# The limit for connect, send and read where neither the cache nor the store has one: otherwise a
# server that hangs would hang every caller for ever.
DEFAULT_SOCKET_TIMEOUT_SECONDS = 5.0
# A call goes on after so many connections were cut: one that was idle, and one while it was used.
MOST_CUTS = 2
# How long a call waits for a connection when all are in use; each is in use for one script only.
POOL_WAIT_SECONDS = 5.0
# So soon after its last reply no server was restarted: a connection that is cut then was cut by
# something else, and the locks are still there. To look costs a call to the system.
TRUST_SECONDS = 0.05
# After so long a pause something on the way, such as a NAT or a balancer, may have forgotten the
# connection without a word: the server is asked for a sign of life first.
IDLE_SECONDS = 1.0
# The rights that the server's user needs, for the error when one is missing.
NEEDED = (
    "+@read +@write +@scripting +@pubsub +@connection +info +time, the lock keys (~), and their "
    "channels (&)"
)
# Parts of the errors of servers that do not know the client.
NOT_LET_IN = ("username-password", "Authentication required", "unauthenticated")
# Parts of the errors of servers where a right is missing, also within a script.
NOT_ALLOWED = ("permissions", "NOPERM", "ACL", "user executing the script can't")
# Of its clients the server first writes to those for whom it had nothing until the end. So after
# this, a script's messages to other clients are sent before the reply to its caller.
PING = pack((b"PING",))
# What the names of the modules begin with that make errors of errors.
MAKE_ERRORS = ("redis.", compat.__name__)


class MayHaveRun(StoreUnavailable):
    """The connection was cut before the reply to a call that must not be made twice."""


class RedisConnections:
    """Connections that one call after the other uses.

    An exception from a signal handler (a soft time limit, for example) may come between any two
    instructions here. So the code needs no cleanup to be right: a connection is idle, or belongs to
    one call, and becomes idle again only after the reply to that call was read. Otherwise it is
    closed, at the latest by the garbage collector. Only connections that still exist are counted.

    The pools of redis-py are not used: they lose a connection if a call is interrupted while it
    gets one, and check each connection twice in each call.
    """

    def __init__(self, make: Callable[[], Any], most: float) -> None:
        """Begin without connections. ``make``: makes one, not connected yet; ``most``: how many
        there may be."""
        self._make, self._most = make, most
        # Each with the moment, on `clock.now`, at which it was last used.
        self._idle: deque[tuple[Any, float]] = deque()
        self._made: WeakSet[Any] = WeakSet()

    def exchange(self, packed: bytes, replies: int, *, once: bool) -> list[Any]:
        """Send packed commands, and read so many replies. Raises what redis-py raises.

        Args:
            packed, replies: the commands, and how many they are.
            once: they must not run twice. Otherwise they are sent again if the connection was cut.
        """
        cuts = 0
        while True:
            # Only this list refers to the connection. A variable would keep it alive in the
            # traceback of an interruption, as long as that exists.
            own: list[Any] = []
            found: list[Any] = []
            try:
                self._lend(own, look=once, fresh=cuts > 0)
                compat.send(own[0], packed)
                while len(found) < replies:
                    found.append(compat.read(own[0]))
                self._idle.append((own.pop(), clock.now()))
                return found
            except BaseException as error:
                self._close(own)
                raise_of_handler(error)
                if not isinstance(error, errors.RedisError | OSError):
                    raise
                self.close_idle()  # They may be broken too.
                cuts += 1
                again = isinstance(error, NotSent if once else errors.ConnectionError)
                if not again or cuts > MOST_CUTS:
                    raise

    def close_idle(self) -> None:
        """Close those that no call uses now."""
        with suppress(IndexError):
            while True:
                self._close([self._idle.pop()[0]])

    def close_inherited(self) -> None:
        """Close those of the parent, in a forked child. The parent's ends stay open: redis-py
        compares a connection's ``pid`` with that of the process."""
        for connection in list(self._made):
            connection.disconnect()

    def _lend(self, own: list[Any], look: bool, fresh: bool) -> None:
        """Put a connection into ``own`` that no other call uses. ``look``: one that is not sound
        would not do."""
        # What can be sent again need not look. But what a connection delivers late, after it was
        # sent again on another one, would take a lock for nobody: so it is not sent where nothing
        # may arrive.
        trusted, give_up = TRUST_SECONDS if look else IDLE_SECONDS, 0.0
        while not (fresh and self._connected(own)):
            try:
                own += self._idle.pop()
            except IndexError:
                if self._connected(own):
                    return
                give_up = give_up or clock.now() + POOL_WAIT_SECONDS
                if clock.now() > give_up:
                    raise errors.TimeoutError(
                        f"Too many connections: all {self._most} are in use; raise max_connections"
                    ) from None
                time.sleep(chance.uniform(0.001, 0.01))
            else:
                idle = clock.now() - own.pop()
                if idle < trusted or _is_sound(own[0], idle):
                    return
                self._close(own)
                self.close_idle()

    def _connected(self, own: list[Any]) -> bool:
        """Put a new connection into ``own``; False if there are as many as may be."""
        if len(self._made) < self._most:
            own.append(self._make())
            self._made.add(own[0])
            # Several threads may be here at the same time. So each counts again, itself included.
            if len(self._made) <= self._most:
                compat.connect(own[0])
                return True
            self._close(own)
        return False

    def _close(self, own: list[Any]) -> None:
        if own:
            # It does not count any more, even if the exception keeps it alive for a while.
            self._made.discard(own[0])
            own[0].disconnect()
            own.clear()


class Script:
    """A Lua script, by the name of its file, as it is sent to the server.

    A line ``--- include PART`` is replaced by the text of that file. Parts are included where they
    are needed, also within a branch: to define a function costs the server as much as a small
    command, each time that the script runs.

    All keys that a script uses are among its KEYS, or are made of one of them.
    """

    def __init__(self, name: str) -> None:
        self.text = _with_parts(name).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


def _with_parts(file: str) -> str:
    text = (Path(__file__).parents[1] / "lua" / f"{file}.lua").read_text("utf-8")
    return re.sub(r"(?m)^ *--- include (\w+)$", lambda part: _with_parts(part[1]), text)


# Read when this module is: a later release may replace the files while the process runs.
SCRIPTS = {
    name: Script(name)
    for name in ("acquire", "count", "get", "leave", "list", "put", "release", "renew")
}


class Client:
    """Runs scripts on a server."""

    def __init__(self, alias: str, pool: Any, options: dict[str, Any], **of_renewal: Any) -> None:
        """Prepare to connect, as the connections of a pool do.

        Args:
            alias: of the store.
            pool: of redis-py.
            options: arguments of redis-py's ``Connection`` in the place of those of the pool.
            of_renewal: other ones for the connections of the renewal thread.
        """
        self.alias, self.pool = alias, pool
        # Makes a connection that only the caller uses; see `_new_connection`.
        self.new_connection: Callable[..., Any] = partial(_new_connection, pool, options)
        self._connections = self._of_process(pool.max_connections)
        # The renewal thread must not wait for the other threads. Under gevent and eventlet it must
        # not share a socket with them either.
        self._of_renewal = self._of_process(math.inf, **of_renewal)

    def run(
        self,
        name: str,
        keys: Sequence[bytes],
        args: Sequence[bytes] = (),
        *,
        once: bool = False,
        ping: bool = False,
        wait: ReplicaWait | None = None,
    ) -> Any:
        """Run a script in one round trip.

        Args:
            name: of the script.
            keys, args: its KEYS and ARGV.
            once: it must not run twice. Otherwise it is sent once more when the connection was cut.
            ping: its messages to other clients are to be sent before its reply; see `PING`.
            wait: is sent right behind it, and gets the server's answer.

        Returns:
            The script's reply.

        Raises `StoreUnavailable`; with ``once`` it is `MayHaveRun` if the script may have run.
        """
        script = SCRIPTS[name]
        packed = pack((b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args))
        while True:
            if ping:
                packed = PING + packed
            if wait is not None:
                packed += pack(wait.words)
            replies = self._exchange(packed, 1 + ping + (wait is not None), once)
            reply = replies[ping]
            if not isinstance(reply, errors.ResponseError):
                if wait is not None:
                    wait.answer = replies[-1]
                return reply
            if not isinstance(reply, errors.NoScriptError):
                raise self.unavailable(reply, keys) from reply
            # The server does not have the script, as after a restart: send its text.
            packed = pack((b"EVAL", script.text, b"%d" % len(keys), *keys, *args))

    def command(self, *words: bytes | str | int) -> Any:
        """Run a plain command, which may be sent twice, and return its reply. Raises
        `StoreUnavailable`."""
        return self.commands([words])[0]

    def commands(
        self, commands: Sequence[Sequence[bytes | str | int]], *, once: bool = False
    ) -> list[Any]:
        """Run plain commands in one round trip; ``once``: they must not run twice.

        Returns the reply to each. Raises `StoreUnavailable`, also for the first that the server
        refuses.
        """
        packed = b"".join(pack(tuple(map(_as_bytes, words))) for words in commands)
        replies = self._exchange(packed, len(commands), once)
        for reply in replies:
            if isinstance(reply, errors.ResponseError):
                raise self.unavailable(reply) from reply
        return replies

    def info(self, *section: str) -> dict[str, str]:
        """What the server says of itself. Raises `StoreUnavailable`."""
        lines = self.command("INFO", *section).decode("utf-8", "replace").splitlines()
        return {name: value for name, _, value in (line.partition(":") for line in lines)}

    def close_idle(self) -> None:
        """Close the connections that no call uses now."""
        self._connections.own().close_idle()
        self._of_renewal.own().close_idle()

    def unavailable(self, error: BaseException, keys: Sequence[bytes] = ()) -> StoreUnavailable:
        """The error to raise for one of redis-py, which came where a script used ``keys``."""
        reason = str(error) or type(error).__name__
        if isinstance(error, errors.ReadOnlyError) or "READONLY" in reason:
            self.close_idle()  # They belong to a server that was demoted.
            reason = f"the server is a replica: point the cache at the primary ({reason})"
        elif any(said in reason for said in NOT_LET_IN):
            reason = f"the server refuses the user or password in the cache's LOCATION: {reason}"
        elif any(said in reason for said in NOT_ALLOWED):
            reason = f"the Redis user lacks a right: {reason}; it needs {NEEDED}"
        elif "used memory > 'maxmemory'" in reason:
            reason = "the server is full: raise its maxmemory, or remove other keys"
        elif "WRONGTYPE" in reason:
            named = ", ".join(key.decode("utf-8", "replace") for key in keys)
            reason = f"{reason}: other code wrote one of the keys {named}; remove that key (DEL)"
        elif isinstance(error, errors.ClusterCrossSlotError | errors.MovedError):
            reason = f"it is a Redis Cluster, which needs the store RedisClusterStore ({reason})"
        return StoreUnavailable(self.alias, reason)

    def _of_process(self, most: float, **options: Any) -> OfProcess[RedisConnections]:
        make = partial(RedisConnections, partial(self.new_connection, **options), most)
        return OfProcess(make, RedisConnections.close_inherited)

    def _exchange(self, packed: bytes, replies: int, once: bool) -> list[Any]:
        connections = self._of_renewal if this_thread.renews else self._connections
        try:
            return connections.own().exchange(packed, replies, once=once)
        except (errors.RedisError, OSError) as error:
            raise_of_handler(error)
            sent = isinstance(error, errors.ConnectionError) and not isinstance(error, NotSent)
            if once and sent:
                raise MayHaveRun(self.alias, str(error)) from error
            raise self.unavailable(error) from error


def raise_of_handler(error: BaseException) -> None:
    """Raise what a signal handler has raised, if ``error`` is that, or was made of it.

    redis-py takes a handler's ``OSError`` for one of the socket, while it waits for that. Errors
    that the caller handles meanwhile are no part of this one.
    """
    found: BaseException | None = error
    made = BaseException()
    try:
        while found is not None:
            at = found.__traceback__
            by = "" if at is None else at.tb_frame.f_globals.get("__name__", "")
            if found is not error and not by.startswith(MAKE_ERRORS):
                return
            if interrupts(found):
                made.__cause__ = None
                raise found
            made, found = found, found.__context__
    finally:
        # What is raised refers to this frame, and to what was made of it. So that it is forgotten
        # with the frames of the block, neither refers to it.
        del error, made, found


def milliseconds(ttl: float) -> bytes:
    """Seconds as milliseconds, rounded up: the server's lease must not end before the holder's."""
    return b"%d" % math.ceil(ttl * 1000)


def _new_connection(pool: Any, given: dict[str, Any], **overrides: Any) -> Any:
    """A connection as those of the pool, not connected yet.

    The server sends replies on it and nothing else. Its timeouts are those of the store, or of the
    cache, or `DEFAULT_SOCKET_TIMEOUT_SECONDS` where neither has one. ``overrides`` are arguments of
    redis-py's ``Connection``.
    """
    options = compat.connection_options(pool) | {"protocol": 2, "decode_responses": False}
    timeout = options.get("socket_timeout") or DEFAULT_SOCKET_TIMEOUT_SECONDS
    options["socket_timeout"] = timeout
    options["socket_connect_timeout"] = options.get("socket_connect_timeout") or timeout
    if options.get("db"):
        # Not as an integer: if a signal handler raises an exception while hiredis packs one, the
        # process crashes.
        options["db"] = str(options["db"])
    return compat.make_connection(pool, options | given | overrides)


def _is_sound(connection: Any, idle: float) -> bool:
    """Whether the idle connection is neither closed nor forgotten, and the server has sent nothing
    unexpected on it."""
    try:
        if idle < IDLE_SECONDS:
            return not compat.arrives(connection, 0)
        compat.send(connection, PING)
        return bool(compat.read(connection) == b"PONG")
    except (errors.RedisError, OSError, ValueError) as error:
        raise_of_handler(error)
        return False


def _as_bytes(value: bytes | str | int) -> bytes:
    """An argument as bytes."""
    return value if isinstance(value, bytes) else str(value).encode()
