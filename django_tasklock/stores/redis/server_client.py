"""Running scripts on one Redis server."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError, RedisError

from ..._compat.redis import NotSent
from ...exceptions import StoreUnavailable
from .connections import new_connection
from .pool import Connections
from .replicas import ReplicaWait
from .script import ONE_COMMAND, Script

__all__ = ["NEEDED", "Call", "ReplyLost", "ServerClient", "as_bytes", "milliseconds"]

NEEDED = (
    "+@read +@write +@scripting +@pubsub +@connection +info +time, the lock keys (~), and their "
    "channels (&)"
)
NOT_ALLOWED = ("NOPERM", "ACL", "user executing the script can't")
"""parts of the errors of servers where a right is missing, also within a script"""
PING = b"*1\r\n$4\r\nPING\r\n"
"""sent before what is to be answered last: of its clients the server first writes to those for whom
it had nothing until the end"""
FULL = "used memory > 'maxmemory'"
"""part of the error of a server that may not take more memory, also within a script"""


class ReplyLost(StoreUnavailable):
    """The connection was cut before the reply: the script may have run."""


class Call(NamedTuple):
    """A script with its KEYS and ARGV."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[Any] = ()


class ServerClient:
    """Runs scripts on a server, on connections of our own."""

    def __init__(self, alias: str, pool: Any, timeouts: dict[str, float | None]) -> None:
        """``pool`` is a pool of redis-py's, ``timeouts`` are overrides for `new_connection`, and
        ``alias`` is that of the store."""
        self.alias = alias
        self.pool = pool
        self.mend: Callable[[Sequence[Any]], bool] = _cannot_mend
        """called with the keys of a script that failed with WRONGTYPE; returns whether to run the
        script again"""
        self.needed = NEEDED
        """the rights that the server's user needs, for the error when one is missing"""
        self._timeouts = timeouts
        self._connections = Connections.of(pool, timeouts)

    def new_connection(self, **overrides: Any) -> Any:
        """A connection that only the caller uses; see `connections.new_connection`."""
        return new_connection(self.pool, **self._timeouts | overrides)

    def close_idle(self) -> None:
        """Close the connections that no call uses now."""
        self._connections.close_idle()

    def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any] = (),
        *,
        again: bool = True,
        private: bool = False,
        last: bool = False,
        meanwhile: Callable[[], object] = tuple,
        wait: ReplicaWait | None = None,
        before: bytes = b"",
    ) -> Any:
        """Run a script in one round trip.

        Args:
            script: to run.
            keys, args: its KEYS and ARGV.
            again: whether it may run twice. If so, it is sent once more on a new connection when a
                connection is cut before the reply, and as often as the cache's retry policy says.
            private: use a connection that only this thread uses.
            last: the server must write the script's messages to other clients before the reply.
            meanwhile: called while the server runs the script, each time that it is sent.
            wait: gets the answer of how many replicas have what the script wrote.
            before: a packed command to send right before, in the place of ``last``.

        Returns:
            The script's reply.

        Raises `StoreUnavailable`; without ``again`` it is `ReplyLost` if the script may have run.
        """
        command = _command(script, keys, args)
        if last and not before:
            before = PING
        cut = False
        while True:
            try:
                # After one connection was cut, the idle ones may be cut as well.
                reply = self._connections.exchange(
                    command,
                    again=again, fresh=cut, private=private, before=before, meanwhile=meanwhile,
                    wait=wait,
                )  # fmt: skip
                if not isinstance(reply, NoScriptError):
                    return reply
            except (RedisError, OSError) as error:
                cut = isinstance(error, RedisConnectionError)
                if cut and not again and not isinstance(error, NotSent):
                    raise ReplyLost(self.alias, str(error)) from error
                if "WRONGTYPE" in str(error) and self.mend(keys):
                    # A script fails on a wrong type before it has changed the lock.
                    continue
                if command[0] == b"EVAL" or not cut:
                    raise self.unavailable(error, script, args) from error
            # The server does not have the script, as after a restart: send its text.
            command[:2] = b"EVAL", script.text

    def run_many(self, calls: Sequence[Call], *, private: bool = False) -> list[Any]:
        """Run several scripts in one round trip, or in two if the server does not have them yet.

        Each may run twice. Returns for each call its reply, or the error that the server answered
        with. ``private`` is that of `run`. Raises `StoreUnavailable` if the server did not answer.
        """
        commands = [_command(*call) for call in calls]
        replies = self._exchange_many(commands, private)
        missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            for at in missing:
                commands[at][:2] = b"EVAL", calls[at].script.text
            again = self._exchange_many([commands[at] for at in missing], private)
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
        return replies

    def _exchange_many(self, commands: Sequence[Sequence[bytes]], private: bool) -> list[Any]:
        fresh = False
        while True:
            try:
                return self._connections.exchange_many(commands, fresh=fresh, private=private)
            except (RedisError, OSError) as error:
                if fresh or not isinstance(error, RedisConnectionError):
                    raise self.unavailable(error) from error
                fresh = True

    def ask(self, command: str, keys: Sequence[bytes] = (), *args: Any) -> Any:
        """Run one plain command, which may be sent twice, and return its reply.

        ``args`` come after the keys. A script runs it, so that a reply to another call is noticed.
        Raises `StoreUnavailable`.
        """
        return self.run(ONE_COMMAND, keys, (command, *args))

    def unavailable(
        self, error: BaseException, script: Script | None = None, args: Sequence[Any] = ()
    ) -> StoreUnavailable:
        """The error to raise for an error of redis-py, which came while a script ran."""
        reason = str(error) or type(error).__name__
        if isinstance(error, NoPermissionError) or any(said in reason for said in NOT_ALLOWED):
            named = _missing(reason, script, args)
            reason = f"the Redis user lacks a right: {named}it needs {self.needed}"
        elif FULL in reason:
            reason = "the server is full: raise its maxmemory, or remove other keys"
        return StoreUnavailable(self.alias, reason)


def _missing(reason: str, script: Script | None, args: Sequence[Any]) -> str:
    """The names of the missing rights, where they are known, and the server's own words."""
    named = re.search(r"'([\w|]+)' command", reason)
    line = re.search(r"user_script:\s*(\d+)", reason)
    rights = [named[1]] if named else []
    if not named and script and line and "run this command" in reason:
        # Some servers name only the line of the script.
        text = script.text.decode().split("\n")[int(line[1]) - 1]
        rights = re.findall(r"redis\.p?call\('(\w+)'", text)
        if script is ONE_COMMAND:
            rights = [str(args[0])]
    names = " or ".join(f"+{right.lower()}" for right in dict.fromkeys(rights))
    return f"{names} ({reason}); " if names else f"{reason}; "


def _command(script: Script, keys: Sequence[bytes], args: Sequence[Any]) -> list[bytes]:
    command = [b"EVALSHA", script.sha, b"%d" % len(keys), *keys]
    command += [arg if type(arg) is bytes else as_bytes(arg) for arg in args]
    return command


def _cannot_mend(_keys: Sequence[Any]) -> bool:
    return False


def as_bytes(value: Any) -> bytes:
    """An argument as bytes. hiredis would take integers and floats as well, but the process crashes
    if a signal handler raises an exception meanwhile."""
    if type(value) is str:
        return value.encode()
    if type(value) is int:
        return b"%d" % value
    return str(value).encode() if isinstance(value, (str, int, float)) else bytes(value)


def milliseconds(ttl: float) -> int:
    """Seconds as milliseconds, rounded up: the server's lease must not end before the holder's."""
    return math.ceil(ttl * 1000)
