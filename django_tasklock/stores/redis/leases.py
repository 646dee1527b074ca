"""The verbs that are the same on one Redis and on a cluster: each is one script about one lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from typing import Any, cast
from weakref import proxy

from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from ..base import Extension, Grant, Note, Refusal
from ..record import digest_of, new_record
from .client import SOCKET_TIMEOUT_OPTION, ReplyLost, as_bytes, milliseconds
from .keyspace import Keyspace
from .many_at_once import RedisManyLocks
from .mending import mend
from .notes import seconds
from .replicas import REPLICAS_OPTION, Replicas
from .rewriting import RedisRewriting
from .script import Script
from .server_memory import memory_of
from .store_client import StoreClient
from .trail import RedisTrail
from .waiter import ChannelSource, RedisWaiter

__all__ = ["ACQUIRE", "CLEAR", "RELEASE", "RedisLeases"]

ACQUIRE = Script("acquire")
RELEASE = Script("release")
CLEAR = Script("clear")
LEAVE_QUEUE = Script("leave_queue")


class RedisLeases(RedisManyLocks, RedisRewriting, RedisTrail):
    """The part of a store on Redis that grants, releases and clears leases.

    A subclass says where the keys are, and does what is about many locks.
    """

    supports_listing = True
    atomic_release = True
    supports_fence = True
    supports_waiting = True
    known_options = RedisTrail.known_options | {SOCKET_TIMEOUT_OPTION, REPLICAS_OPTION}

    def __init__(self, settings: StoreSettings, client: StoreClient, keyspace: Keyspace) -> None:
        super().__init__(settings, client, keyspace)
        # A proxy: the client must not keep itself alive.
        self.client.mend = partial(mend, proxy(client), keyspace)
        self.replicas = Replicas(settings, self.client.new_connection)

    def subscriber_of(self, name: str) -> ChannelSource:
        """Where a waiter for this lock gets its channel."""
        raise NotImplementedError

    def _extend(self, batch: Sequence[Extension], *, private: bool) -> list[bool]:
        raise NotImplementedError

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        return self.acquire_with_note(name, token, ttl, owner, None)

    def acquire_with_note(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None,
        floor: int | None = None,
    ) -> Grant | Refusal:
        value, ttl_ms = self.client.encode(new_record(token, owner)), milliseconds(ttl)
        answer = self.ask(name, value, ttl_ms, note=note, floor=floor)
        if isinstance(answer, Grant):
            return answer
        refusal = answer[0]
        if refusal.holder.token == token:
            # Our own lease: an earlier call with this token has made it. Its record has another
            # time, so the script did not recognise the value.
            # If it has ended meanwhile, the lock is free, or held by somebody else.
            held = self._value_of(name, token) or value
            again = self.ask(name, held, ttl_ms, note=note, floor=floor)
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
        floor: int | None = None,
    ) -> Grant | tuple[Refusal, int, bytes, int]:
        """Run the acquire script once.

        ``value`` is the record to write; ``ttl_ms`` is in milliseconds. The next three are those
        of a waiter: its member of the wait queue, that of its question before this one, and its
        number in the queue; ``floor`` is that of `acquire_above`. A refusal is returned with the
        server's clock (microseconds), the waiter's number, and how many are before it in the
        queue: 0, empty and 0 where nobody waits.
        Raises `StoreUnavailable`, also if too few replicas have the lease: it is released then.
        """
        keys: tuple[bytes, ...] = self.keyspace.keys(name)
        args: tuple[Any, ...] = (value, b"%d" % ttl_ms, self.keyspace.member(name).encode())
        if member or note is not None or floor is not None:
            args += (member, before, number)
        if note is not None:
            keys += (self.keyspace.note_key(note.key),)
            args += (note.text, milliseconds(note.ttl))
        elif floor is not None:
            args += (b"", b"")
        if floor is not None:
            args += (floor,)
        wait = self.replicas.wait(ttl_ms)
        reply = self.client.run(ACQUIRE, keys, args, wait=wait)
        granted = type(reply) is bytes or reply[0]
        if granted and wait is not None and not wait.enough:
            # No answer: the caller, which gets no lease, abandons it.
            with suppress(StoreUnavailable):
                self.release(name, "", value)
            raise StoreUnavailable(self.alias, f"{name} is not acquired: {wait}")
        answer = self.answer(name, value, reply, noted=note is not None)
        if isinstance(answer, Grant):
            return answer
        if not member:
            return answer, 0, b"", 0
        return answer, int(reply[3]), as_bytes(reply[4]), int(reply[5])

    def answer(self, name: str, value: bytes, reply: Any, *, noted: bool) -> Grant | Refusal:
        """What a reply of the acquire script says."""
        if type(reply) is bytes:
            return Grant(int(reply), value, None, noted)
        if reply[0] == 2:  # There is another note.
            return Grant(int(reply[1]), value)
        if reply[0]:
            return Grant(int(reply[1]), value, None, noted, None, memory_of(*reply[2:]))
        return Refusal(self.records.info(name, reply[1], seconds(reply[2])))

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        return self._extend([Extension(name, token, ttl, proof)], private=False)[0]

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        return self._extend(batch, private=True)

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        return self.release_with_note(name, token, proof, None)

    def release_with_note(self, name: str, token: str, proof: Any, note: Note | None) -> bool:
        value = proof or self._value_of(name, token)
        if value is None:
            return False
        keys: tuple[bytes, ...] = self.keyspace.keys(name)
        args: tuple[Any, ...] = (value, self.keyspace.member(name).encode())
        if note is not None:
            keys += (self.keyspace.note_key(note.key),)
            args += (note.text, milliseconds(note.ttl))
        try:
            # With ``last``, a waiter of this process gets its message before we get our reply.
            # Otherwise it would have to wait until this thread lets go of the interpreter lock.
            last = self.subscriber_of(name).in_use()
            return int(self.client.run(RELEASE, keys, args, again=False, last=last)) > 0
        except ReplyLost:
            # The whole script was sent. So if the lease is gone now, that call has released it,
            # unless it was cleared or has ended (-1). A key that somebody deleted by hand, and that
            # another lease holds by now, looks like a release.
            done = int(self.client.run(RELEASE, keys, args))
            return done > 0 or (done == 0 and not self._was_cleared(name, value))

    def abandon(self, name: str, token: str) -> bool:
        value = self._value_of(name, token, private=True)
        if value is None:
            return False
        keys, args = self.keyspace.keys(name), (value, self.keyspace.member(name))
        return int(self.client.run(RELEASE, keys, args, private=True)) > 0

    def clear(self, name: str, token: str | None = None) -> bool:
        if token is None:
            return self._clear(name)
        value = self._value_of(name, token)
        return value is not None and self._clear(name, value)

    def clear_foreign(self, name: str, digest: str) -> bool:
        value = self._value(name)
        if value is None or digest_of(value) != digest or self.records.record(value) is not None:
            return False
        return self._clear(name, value)

    def _clear(self, name: str, *value: bytes) -> bool:
        keys = (*self.keyspace.keys(name), self.keyspace.cleared_key(name))
        # Not sent again after a lost reply: the next waiter may hold the lock by then.
        args = (self.keyspace.member(name), *value)
        return bool(self.client.run(CLEAR, keys, args, again=False))

    def _was_cleared(self, name: str, value: bytes) -> bool:
        """Whether the lease with this value is the one that an operator cleared last."""
        digest = sha1(value, usedforsecurity=False).hexdigest().encode()
        return bool(self.client.ask("GET", [self.keyspace.cleared_key(name)]) == digest)

    def waiter(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> RedisWaiter | None:
        return RedisWaiter(self, name, token, milliseconds(ttl), owner)

    def leave_queue(
        self, name: str, value: bytes, member: bytes, before: bytes = b""
    ) -> bytes | None:
        """Leave the wait queue. Returns the fence if the lock was handed over just before.

        ``member`` and ``before`` are those of `ask`, ``value`` is the waiter's record.
        """
        args = (member, value, self.keyspace.member(name), before)
        return cast("bytes | None", self.client.run(LEAVE_QUEUE, self.keyspace.keys(name), args))
