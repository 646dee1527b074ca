"""The way to the server: django-redis's raw client, or that of Django's own backend."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from django.core.cache import caches
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoPermissionError,
    RedisError,
)

from ...arguments import checked_ttl
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig, StoreUnavailable
from .connections import NO_SCRIPT, NotSent, new_connection
from .decoding import decoder
from .pool import Connections

__all__ = ["SOCKET_TIMEOUT", "Client", "ReplyLost", "Script", "as_bytes", "milliseconds"]

NEEDED = (
    "+@read +@write +@scripting +@pubsub +@connection +info +time, the lock keys (~), and their "
    "channels (&)"
)
NOT_ALLOWED = ("NOPERM", "ACL", "user executing the script can't")
"""what servers say where a right is missing, from within a script as well"""


SOCKET_TIMEOUT = "SOCKET_TIMEOUT"
"""the option of a store: its limit in seconds to connect, to send and to read; None: no limit"""


class ReplyLost(StoreUnavailable):
    """The connection was cut: the script may have run."""


class Script:
    """One of the Lua verbs, by its file's name, and those of what it calls.

    The last argument is the number of the call, and a reply starts with it: so a reply that
    belongs to another call is found. The verb sees the other arguments only.
    """

    def __init__(self, verb: str, *before: str) -> None:
        folder = files("django_tasklock.stores") / "lua"
        parts = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*before, verb))
        self.text = (
            f"local number = table.remove(ARGV)\nlocal function main()\n{parts}\nend\n"
            "return {number, main() or false}"
        ).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


CALL = Script("call")


class Client:
    """Runs scripts on a cache's server, by connections of our own, and speaks its serializer.

    Raises `InvalidLockConfig` for a cache whose client picks a server by the key: a script
    needs all of its keys on one; and for a wrong SOCKET_TIMEOUT.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.alias = settings.alias
        self.cache: Any = caches[settings.cache]
        self.encode: Callable[[Any], Any]
        self.decode: Callable[[bytes], Any]
        """reads what may be a record, and raises for most that is none"""
        self.mend: Callable[[Sequence[Any]], bool] = _cannot_mend
        """called with the keys of a script that found another type than it needs; True: it may
        run again"""
        own: Any = getattr(self.cache, "client", None)
        if own is not None:
            if any(base.__name__ == "ShardClient" for base in type(own).__mro__):
                raise InvalidLockConfig(
                    f"the lock store {self.alias!r} cannot use django-redis's ShardClient: its "
                    "connection depends on the key, and a lock's keys must be on one server"
                )
            self.encode = own.encode
            self.decode = _decoder(own)
            self.redis: Any = own.get_client(write=True)
        else:
            own = getattr(self.cache, "_cache", None)
            if not hasattr(own, "get_client"):
                raise InvalidLockConfig(
                    f"the lock store {self.alias!r} needs a cache of django-redis, or Django's own "
                    f"RedisCache; its CACHE {settings.cache!r} is a {type(self.cache).__name__}"
                )
            self.encode = own._serializer.dumps
            self.decode = decoder(self.encode, own._serializer.loads)
            self.redis = own.get_client(None, write=True)
        self.pool: Any = self.redis.connection_pool
        self._timeouts = _timeouts(settings)
        self._connections = Connections.of(self.pool, self._timeouts)

    def new_connection(self, **overrides: Any) -> Any:
        """A connection for the caller alone; see `connections.new_connection`."""
        return new_connection(self.pool, **self._timeouts | overrides)

    def make_key(self, key: str) -> str:
        """The physical key of a cache key."""
        made: str = self.cache.make_key(key)
        return made

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
    ) -> Any:
        """Run a script in one round trip and return its reply.

        With ``again`` the script may run twice, which is what happens when a connection is
        cut before the reply: it is asked once more on a new one, and as often as the cache's
        own retry policy says. ``private``: on a connection of this thread's own.
        ``last``: the reply comes after the script's messages to others. ``meanwhile`` is called
        while the server is at it, each time that it is asked.

        Raises `StoreUnavailable`; it is `ReplyLost` where the script may have run and must not
        run twice.
        """
        command = [b"EVALSHA", script.sha, b"%d" % len(keys), *keys]
        command += [arg if type(arg) is bytes else as_bytes(arg) for arg in args]
        cut = False
        while True:
            try:
                # After a cut the idle connections may be cut as well, without our knowing yet.
                reply = self._connections.exchange(
                    command,
                    again=again, fresh=cut, private=private, last=last, meanwhile=meanwhile,
                )  # fmt: skip
                if reply is not NO_SCRIPT:
                    return reply
            except (RedisError, OSError) as error:
                cut = isinstance(error, RedisConnectionError)
                if cut and not again and not isinstance(error, NotSent):
                    raise ReplyLost(self.alias, str(error)) from error
                if "WRONGTYPE" in str(error) and self.mend(keys):
                    # No verb has changed what it asks of the lock by then: it may run again.
                    continue
                if command[0] == b"EVAL" or not cut:
                    raise self.unavailable(error, script, args) from error
            # The server does not have the script; after a restart it has none any more.
            command[:2] = b"EVAL", script.text

    def ask(self, command: str, keys: Sequence[bytes] = (), *args: Any) -> Any:
        """The reply to one plain command, its keys and what comes after them; it may be sent
        twice. By a script, so that the reply is known to be its own. Raises `StoreUnavailable`.
        """
        return self.run(CALL, keys, (command, *args))

    def unavailable(
        self, error: BaseException, script: Script | None = None, args: Sequence[Any] = ()
    ) -> StoreUnavailable:
        """The error to raise for what the client library raised, when it ran a script."""
        reason = str(error) or type(error).__name__
        if isinstance(error, NoPermissionError) or any(said in reason for said in NOT_ALLOWED):
            reason = (
                f"the Redis user lacks a right: {_missing(reason, script, args)}it needs {NEEDED}"
            )
        return StoreUnavailable(self.alias, reason)


def _timeouts(settings: StoreSettings) -> dict[str, float | None]:
    if SOCKET_TIMEOUT not in settings.options:
        return {}
    limit = settings.options[SOCKET_TIMEOUT]
    if limit is not None:
        try:
            limit = checked_ttl(limit)
        except (TypeError, ValueError) as error:
            raise InvalidLockConfig(
                f"the option {SOCKET_TIMEOUT} of the lock store {settings.alias!r} is a number of "
                f"seconds, or None, not {limit!r}"
            ) from error
    return {"socket_timeout": limit, "socket_connect_timeout": limit}


def _missing(reason: str, script: Script | None, args: Sequence[Any]) -> str:
    """The right that is missing, by its name where that can be told, and what the server said."""
    named = re.search(r"'([\w|]+)' command", reason)
    line = re.search(r"user_script:\s*(\d+)", reason)
    rights = [named[1]] if named else []
    if not named and script and line and "run this command" in reason:
        # Some servers tell nothing but the line.
        text = script.text.decode().split("\n")[int(line[1]) - 1]
        rights = re.findall(r"redis\.p?call\('(\w+)'", text)
        if script is CALL:
            rights = [str(args[0])]
    names = " or ".join(f"+{right.lower()}" for right in dict.fromkeys(rights))
    return f"{names} ({reason}); " if names else f"{reason}; "


def _decoder(own: Any) -> Callable[[bytes], Any]:
    """What reads the values of a client of django-redis."""
    if own.decode.__module__ != "django_redis.client.default":
        return decoder(own.encode, own.decode)  # Somebody's own way.
    return decoder(own.encode, own._serializer.loads, own._compressor.decompress)


def _cannot_mend(_keys: Sequence[Any]) -> bool:
    return False


def as_bytes(value: Any) -> bytes:
    """An argument as it is sent. hiredis takes integers and floats as well, but crashes the process
    when a signal handler raises while it does."""
    if type(value) is str:
        return value.encode()
    if type(value) is int:
        return b"%d" % value
    return str(value).encode() if isinstance(value, (str, int, float)) else bytes(value)


def milliseconds(ttl: float) -> int:
    """A ttl as Redis counts it, rounded up: its lease never ends before the holder's."""
    return math.ceil(ttl * 1000)
