"""Leases in Redis: one round trip a verb, by one script a verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ...conf import StoreSettings
from ...lease import LockInfo
from ...owner import Owner
from ..base import Extension, Finding, Grant, Note, Refusal
from ..record import (
    Record,
    digest_of,
    fence_of,
    fields_of,
    interrupts,
    new_record,
    record_of,
)
from .client import SOCKET_TIMEOUT, ReplyLost, Script, milliseconds
from .line import Place, value_of_member
from .listener import Listener
from .listing import Listing
from .mending import mend
from .notes import Notes, seconds
from .server import findings

__all__ = ["RedisStore"]

ACQUIRE = Script("acquire", "holding", "shared")
RELEASE = Script("release", "holding", "shared")
CLEAR = Script("clear", "holding", "shared")
EXTEND = Script("extend", "holding")
GET = Script("get", "holding")
HELD = Script("held")
LEAVE = Script("leave", "holding", "shared")

BATCH = 500
"""leases extended by one script; it holds the server up for about half a millisecond"""


class RedisStore(Notes):
    """django-redis's raw client, or that of Django's own Redis backend, and Lua.

    The record is the value of the lock's key, in the cache's own serializer, so that the
    cache, ``redis-cli`` and code that calls ``cache.add`` on the same key all see it, and
    exclude us as we exclude them. Beside the locks there are two keys a store: the index, a
    sorted set of names by expiry, and the fences, a hash. A lock that is waited for has a wait
    queue, a sorted set of its own. Their names hold a space, which a lock's name never does,
    and the store's prefix, so that no two stores share them.
    """

    supports_listing = True
    atomic_release = True
    supports_fence = True
    supports_waiting = True
    known_options = Notes.known_options | {SOCKET_TIMEOUT}

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        prefix = settings.key_prefix
        self._prefix = f"{prefix}:" if prefix else ""
        self.index = self.client.make_key(f"{prefix} index").encode()
        self.fences = self.client.make_key(f"{prefix} fences").encode()
        self.listener = Listener(self.client, self.index + b":")
        self._listing = Listing(self)
        kinds = {self.index: b"zset", self.reserved: b"zset", self.fences: b"hash"}
        self.client.mend = partial(mend, self.client, kinds)
        self._rest = self._fields  # One for all, or each lock of a list has a method of its own.

    def key(self, name: str) -> str:
        """The physical name of a lock."""
        return self.client.make_key(self._prefix + name)

    def _keys(self, name: str) -> tuple[bytes, bytes, bytes, bytes]:
        key = self.key(name).encode()
        return key, self.index, self.fences, key + b" queue"

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        return self.acquire_noted(name, token, ttl, owner, None)

    def acquire_noted(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], note: Note | None
    ) -> Grant | Refusal:
        value = self.client.encode(new_record(token, owner))
        answer = self.ask(name, value, milliseconds(ttl), note=note)
        if isinstance(answer, Grant):
            return answer
        refusal = answer[0]
        if refusal.holder.token == token:
            # Our own lease, taken by an earlier call whose record says another moment.
            held = self._value_of(name, token)
            if held is not None:
                again = self.ask(name, held, milliseconds(ttl), note=note)
                return again if isinstance(again, Grant) else again[0]
        return refusal

    def ask(
        self,
        name: str,
        value: bytes,
        ttl_ms: int,
        member: bytes = b"",
        before: bytes = b"",
        number: bytes = b"",
        note: Note | None = None,
    ) -> Grant | tuple[Refusal, int, bytes]:
        """One run of the acquire script.

        ``member``, ``before`` and ``number`` are the waiter's: its member of the queue, that of
        its last question, and its number there. A refusal comes with the server's clock, in us,
        and the waiter's number.
        """
        keys: tuple[bytes, ...] = self._keys(name)
        args: tuple[Any, ...] = (value, ttl_ms, name, member, before, number)
        if note is not None:
            keys += (self.note_key(note.key),)
            args += (note.text, milliseconds(note.ttl))
        reply = self.client.run(ACQUIRE, keys, args)
        if reply[0]:
            return Grant(int(reply[1]), value, noted=note is not None)
        info = self.info(name, reply[1], seconds(reply[2]))
        return Refusal(info), int(reply[3]), as_bytes(reply[4])

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        return self._extend([Extension(name, token, ttl, proof)], private=False)[0]

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        return self._extend(batch, private=True)

    def _extend(self, batch: Sequence[Extension], *, private: bool) -> list[bool]:
        done: list[bool] = []
        for start in range(0, len(batch), BATCH):
            part = batch[start : start + BATCH]
            keys: list[bytes] = [self.index]
            args: list[Any] = []
            for name, token, ttl, proof in part:
                value = proof or self._value_of(name, token) or b""
                keys.append(self.key(name).encode())
                args += value, milliseconds(ttl), name
            done += map(bool, self.client.run(EXTEND, keys, args, private=private))
        return done

    def release(self, name: str, token: str, proof: Any = None, note: Note | None = None) -> bool:
        value = proof or self._value_of(name, token)
        if value is None:
            return False
        keys: tuple[bytes, ...] = self._keys(name)
        args: tuple[Any, ...] = (value, name)
        if note is not None:
            keys += (self.note_key(note.key),)
            args += (note.text, milliseconds(note.ttl))
        try:
            # A next holder in this process is told before we are: it would wait until we let go
            # of the interpreter.
            last = self.listener.in_use()
            done: int = self.client.run(RELEASE, keys, args, again=False, last=last)
            return done > 0
        except ReplyLost:
            # The script was sent as a whole. So if the lease is gone now, that call has released
            # it, unless what is left says otherwise. What leaves the same as a release: a clear,
            # and a key that was deleted and is held by another now.
            done = self.client.run(RELEASE, keys, args)
            return done >= 0

    def held(self, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(names), BATCH):
            part = names[start : start + BATCH]
            there = self.client.run(HELD, [self.key(name).encode() for name in part])
            found.update(name for name, held in zip(part, there, strict=True) if held)
        return found

    def abandon(self, name: str, token: str) -> bool:
        value = self._value_of(name, token, private=True)
        if value is None:
            return False
        return bool(self.client.run(RELEASE, self._keys(name), (value, name), private=True) > 0)

    def clear(self, name: str, token: str | None = None) -> bool:
        args: tuple[Any, ...] = (name,)
        if token is not None:
            value = self._value_of(name, token)
            if value is None:
                return False
            args = (name, value)
        # Not again after a lost reply: the next in line may hold the lock by then.
        return bool(self.client.run(CLEAR, self._keys(name), args, again=False))

    def clear_foreign(self, name: str, digest: str) -> bool:
        value = self._value(name)
        if value is None or digest_of(value) != digest or self._record(value) is not None:
            return False
        return bool(self.client.run(CLEAR, self._keys(name), (name, value), again=False))

    def get(self, name: str) -> LockInfo | None:
        key, _, fences, line = self._keys(name)
        reply = self.client.run(GET, (key, fences, line), (name,))
        if reply is None:
            return None
        value, left, fence, waiters = reply
        return self.info(name, value, seconds(left), fence, waiters)

    def line(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> Place | None:
        return Place(self, name, token, milliseconds(ttl), owner)

    def leave_line(
        self, name: str, value: bytes, member: bytes, before: bytes = b""
    ) -> bytes | None:
        """Leave the queue; the fence, if the lock was handed over in that very moment."""
        args = (member, value, name, before)
        reply: bytes | None = self.client.run(LEAVE, self._keys(name), args)
        return reply

    def waiters(self, name: str, limit: int = 100) -> list[Owner]:
        if limit <= 0:
            return []
        members = self.client.ask("ZRANGE", self._keys(name)[3:], 0, limit - 1)
        return [self.info(name, value_of_member(member), None).owner for member in members]

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        return self._listing.list(prefix, limit, offset)

    def count(self, prefix: str = "") -> int:
        return self._listing.count(prefix)

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        return self._listing.scan(prefix)

    def check(self) -> Iterable[Finding]:
        return findings(self.client)

    def info(
        self,
        name: str,
        value: bytes,
        ttl: float | None,
        fence: bytes | None = None,
        waiters: int | None = None,
    ) -> LockInfo:
        """The `LockInfo` of a raw value, ours or anybody's."""
        return LockInfo.deferred(name, ttl, self.alias, waiters, self._rest, name, value, fence)

    def _fields(self, name: str, value: bytes, fence: bytes | None) -> dict[str, Any]:
        record, key = self._record(value), self.key(name)
        if record is None:
            return fields_of(None, key, digest=digest_of(value))
        number = None if fence is None else fence_of(fence)
        return fields_of(record, key, number, None if number is None else number / 1_000_000)

    def _record(self, value: bytes) -> Record | None:
        try:
            decoded = self.client.decode(value)
        except Exception as error:
            if interrupts(error):
                raise
            return None  # Somebody else's. A lock all the same.
        return record_of(decoded)

    def _value(self, name: str, *, private: bool = False) -> bytes | None:
        key, _, fences, line = self._keys(name)
        reply = self.client.run(GET, (key, fences, line), (name,), private=private)
        return None if reply is None else reply[0]

    def _value_of(self, name: str, token: str, *, private: bool = False) -> bytes | None:
        """The raw value, if it is that of the lease with this token."""
        value = self._value(name, private=private)
        record = None if value is None else self._record(value)
        return value if record is not None and record.token == token else None


def as_bytes(number: Any) -> bytes:
    # Counted now it comes as an integer, looked up as text.
    return number if isinstance(number, bytes) else b"%d" % number
