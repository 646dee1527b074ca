"""Locks in Redis: each verb is one script and one round trip."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import Any

from ..._values import clock
from ..._values.arguments import base_of
from ..._values.lock_info import Event, LockKeys
from ..._values.owner import SINCE, Owner
from ..._values.tokens import TOKEN_CHARACTERS
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from .. import records
from ..base import BaseStore, Extension, Finding, Grant, Note, Question, Refusal
from ..records import ANY, Change, Done, Entry, Foreign, Held, Record, is_listed, is_note
from .check import findings
from .connections import Client, MayHaveRun, milliseconds
from .events import HISTORY_OPTION, EventStreams
from .keys import SOCKET_TIMEOUT_OPTION, Encoding, Keys, fence_of, served, timeouts
from .listener import listeners_of
from .replicas import REPLICAS_OPTION, Replicas, ReplicaWait
from .waiter import RedisWaiter, value_of

# A script for so many keeps the server busy for about half a millisecond.
LEASES_PER_SCRIPT = 500
# Mostly the first page of a list is enough.
FIRST_LEASES = 100
# How many names of the index one script reads.
NAMES_PER_SCRIPT = 1000


class RedisStore(BaseStore):
    """Locks in Redis, through django-redis's raw client or that of Django's own Redis backend.

    The value of a lock's key is the text of its record, in the cache's own serializer. So the
    cache, ``redis-cli`` and code that calls ``cache.add`` on the same key see the lock, and each
    side excludes the other. `Keys` says which other keys there are.
    """

    fences_are_times = True
    supports_waiting = True
    supports_history = True
    uses_cache = True
    known_options = frozenset({SOCKET_TIMEOUT_OPTION, REPLICAS_OPTION, HISTORY_OPTION})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.client, self.encoding, self.keys = self._server()
        # It connects to nothing, and raises for an option that is unknown.
        socket_timeout = self.client.new_connection().socket_timeout
        self.replicas = Replicas(settings, socket_timeout)
        self.history = EventStreams(settings, self.client, self.keys)
        self.supports_history = self.history.kept > 0
        self.listeners = listeners_of(self.client, self.keys.channels)
        # When each run of the server was first seen.
        self._seen: dict[str, float] = {}

    def _server(self) -> tuple[Client, Encoding, Keys]:
        """How the server is reached, what is written there, and under which keys."""
        cache, encoding = served(self.settings)
        client = Client(self.alias, cache.pool, timeouts(self.settings))
        prefix, prepends = self.settings.key_prefix, cache.prepends
        return client, encoding, Keys(cache.make_key, prefix, self.alias, prepends=prepends)

    # The three methods of a store.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        locks = [self.keys.of(change.name) for change in changes]
        keys = [self.keys.index, self.keys.fences, self.keys.listed]
        args = [self.encoding.versioned, b"%d" % least_fence if least_fence else b""]
        for change, lock in zip(changes, locks, strict=True):
            keys += lock.key, lock.queue, lock.permits, lock.gate
            args += self._words(change, lock)
        ttls = [each.ttl for each in changes if each.ttl is not None and not is_note(each.name)]
        wait = self.replicas.wait(min(ttls)) if ttls else None
        # A change that removes something, made twice, would not find it the second time.
        once = any(change.record is None and change.expect != ANY for change in changes)
        made, found = self.client.run("put", keys, args, once=once, wait=wait)
        if made and wait is not None and not wait.enough:
            raise StoreUnavailable(self.alias, f"{locks[0]} is not written: {wait}")
        return Done(bool(made), self._entries(locks, found))

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        entries: builtins.list[Entry | None] = []
        for start in range(0, len(names), LEASES_PER_SCRIPT):
            locks = [self.keys.of(name) for name in names[start : start + LEASES_PER_SCRIPT]]
            keys = [self.keys.fences]
            for lock in locks:
                keys += lock.key, lock.queue, lock.permits
            found = self.client.run("get", keys, [lock.member for lock in locks])
            entries += self._entries(locks, found)
        return entries

    def list(self, prefix: str = "") -> Iterator[Entry]:
        names, size = self._names(prefix), FIRST_LEASES
        while part := [*islice(names, size)]:
            yield from filter(None, self.get(part))
            size = LEASES_PER_SCRIPT

    # Verbs that have a script of their own, for speed.

    def acquire(
        self, names: Sequence[str], token: str, ttl: float, owner: Record, note: Note | None = None
    ) -> Grant | Refusal:
        value = self.encoding.value_of_lease(token, owner)
        return self.acquire_or_join(Question(names, token, ttl, owner, note), value)[0]

    def acquire_or_join(
        self, question: Question, value: bytes, joining: Sequence[bytes] = ()
    ) -> tuple[Grant | Refusal, Sequence[Any]]:
        """Run the acquire script once.

        Args:
            question: the arguments of `acquire`.
            value: the record to write.
            joining: of a waiter its member of the wait queue, and its number there or b"".

        Returns:
            The answer, and what the script says of the waiter if it was refused.

        Raises `StoreUnavailable`, also if too few replicas have the lease: it is released then.
        """
        names, token, ttl, owner, note = question
        locks, slots = [*map(self.keys.of, names)], owner.get("slots")
        keys, members = self.keys.of_question(locks, slots), map(attrgetter("member"), locks)
        permits = b"0" if slots is None else b"%d" % len(locks)
        args = [token.encode(), value, milliseconds(ttl), permits, *members]
        if note is not None:
            keys.append(self.keys.of(records.note_name(note.key)).key)
            args += self._words_of(note)
        elif joining:
            args += b"", b"", b""
        args += joining
        wait = self.replicas.wait(ttl)
        reply = self.client.run("acquire", keys, args, wait=wait)
        if reply[0] < 1:
            if reply[0] < 0:
                locks = [self.keys.of(base_of(locks[0], slots), locks[0].gate)]
            held = zip(locks, reply[1][::2], reply[1][1::2], strict=True)
            return Refusal(tuple(self.info(self.entry(*each)) for each in held)), reply[2:]
        _, at, fence, noted = reply
        grant = Grant(locks[at - 1], fence_of(fence), bool(noted))
        if wait is not None and not wait.enough:
            # No answer: the caller, which gets no lease, gives the token up.
            with suppress(StoreUnavailable):
                self.release(grant.name, token)
            raise StoreUnavailable(self.alias, f"{grant.name} is not acquired: {wait}")
        return grant, ()

    def extend(self, name: str, token: str, ttl: float) -> bool:
        return self._extend([Extension(name, token, ttl)], self.replicas.wait(ttl))[0]

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool]:
        done: builtins.list[bool] = []
        for start in range(0, len(batch), LEASES_PER_SCRIPT):
            # A renewal that a failover forgets is made good by the next one.
            done += self._extend(batch[start : start + LEASES_PER_SCRIPT], None)
        return done

    def release(self, name: str, token: str, note: Note | None = None) -> bool:
        lock = self.keys.of(name)
        keys = [lock.key, self.keys.index, self.keys.fences, lock.queue, lock.permits, lock.gate]
        args = [token.encode(), lock.member]
        if note is not None:
            keys.append(self.keys.of(records.note_name(note.key)).key)
            args += self._words_of(note)[1:]
        try:
            # With the PING, the next holder gets its message before we get our reply. Otherwise it
            # would wait for a processor, or in this process for the interpreter lock.
            return bool(self.client.run("release", keys, args, once=True, ping=True))
        except MayHaveRun:
            # The whole script was sent. So if the lease is gone now, that call has released it,
            # or it was cleared meanwhile.
            self.client.run("release", keys, args)
            return True

    # What the store has beside these.

    def may_have_given(self, name: str, fence: int | None) -> bool:
        ends = self.client.command(b"HMGET", self.keys.fences, b" first", b"")
        first, last = (fence_of(end) or 0 for end in ends)
        return last > 0 if fence is None else first <= fence <= last

    def waiter(self, question: Question) -> RedisWaiter:
        return RedisWaiter(self, question)

    def waiters(self, name: str, limit: int = 100) -> builtins.list[Owner]:
        queue = self.keys.of(name).queue
        members = self.client.command(b"ZRANGE", queue, 0, limit - 1) if limit else []
        found = [records.record_of(value_of(member)) for member in members]
        return [records.waiter_of(record) for record in found if record is not None]

    def count(self, prefix: str = "") -> int:
        if not prefix:
            return int(self.client.run("count", [self.keys.index]))
        return sum(1 for _ in self._names(prefix))

    def record(self, events: Sequence[Event]) -> None:
        self.history.record(events)

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        return self.history.events(name, task_id, limit)

    def check(self) -> Iterable[Finding]:
        return findings(self)

    def uptime(self) -> float:
        said = self.client.info("server")
        seen = clock.now() - self._seen.setdefault(said.get("run_id", ""), clock.now())
        # By its own clock it was started later, if that was put back.
        return max(float(said["uptime_in_seconds"]), seen)

    def close_idle(self) -> None:
        self.client.close_idle()
        for listener in self.listeners.own():
            listener.close_idle()

    def keyed(self, name: str) -> LockKeys:
        return self.keys.of(name)

    def key(self, name: str) -> str:
        return self.keys.of(name).key.decode()

    # How changes are sent, and answers are read.

    def _words(self, change: Change, lock: LockKeys) -> builtins.list[bytes]:
        """What put.lua has to know of a change, in the order in which it says so."""
        expect, record = change.expect, change.record
        proof = version = token = new_version = b""
        if isinstance(expect, Held):
            there, proof = b"held", expect.token.encode()
            version = self._with_version(expect.version)
        elif isinstance(expect, Foreign):
            there, proof = b"foreign", expect.digest.encode()
        else:
            there = expect.encode()
        if isinstance(record, Mapping):
            value, token = self.encoding.value_of(record), record["token"].encode()
            new_version = self._with_version(record.get("version"))
        else:  # `KEEP`, or nothing.
            value = (record or "").encode()
        ttl = b"" if change.ttl is None else milliseconds(change.ttl)
        return [there, proof, version, value, ttl, lock.member, token, new_version]

    def _with_version(self, version: str | None) -> bytes:
        return self.encoding.with_version(version) if version else b""

    def _words_of(self, note: Note) -> tuple[bytes, bytes, bytes]:
        """What acquire.lua has to know of a note. Its value is empty if there shall be none."""
        value = records.plain_note(note.text)
        return value[:TOKEN_CHARACTERS], value if note.text else b"", milliseconds(note.ttl)

    def _extend(self, batch: Sequence[Extension], wait: ReplicaWait | None) -> builtins.list[bool]:
        keys, args = [self.keys.index], list[bytes]()
        for name, token, ttl in batch:
            lock = self.keys.of(name)
            keys.append(lock.key)
            args += token.encode(), milliseconds(ttl), lock.member
        done = [*map(bool, self.client.run("renew", keys, args, wait=wait))]
        if wait is not None and not wait.enough and any(done):
            raise StoreUnavailable(self.alias, f"{batch[0].name} is not extended: {wait}")
        return done

    def _names(self, prefix: str) -> Iterator[str]:
        """The names in an index that begin so, the soonest to end first.

        It asks for what ends at or after the last end that it has seen, because leases that are
        renewed or released meanwhile move within the index, or leave it.
        """
        index = self.keys.listed if is_note(prefix) else self.keys.index
        seen: set[bytes] = set()
        start, size = b"", NAMES_PER_SCRIPT
        while True:
            flat = self.client.run("list", [index], [start, b"%d" % size])
            fresh = [member for member in flat[::2] if member not in seen]
            seen.update(fresh)
            for name in filter(None, map(self.keys.name_of, fresh)):
                if is_listed(name, prefix):
                    yield name
            if len(flat) < 2 * size:
                return
            start = flat[-1]
            if not fresh:  # All of them end in the same millisecond.
                size *= 2

    def _entries(
        self, locks: Sequence[LockKeys], found: Sequence[Any]
    ) -> builtins.list[Entry | None]:
        """What look.lua has found under some names: five answers for each."""
        entries: builtins.list[Entry | None] = []
        for at, lock in enumerate(locks):
            value, *more = found[5 * at : 5 * at + 5]
            entries.append(None if value is None else self.entry(lock, value, *more))
        return entries

    def entry(
        self,
        lock: LockKeys,
        value: bytes,
        left_ms: int,
        fence_text: bytes | None = None,
        waiters: int | None = None,
        first: bytes | None = None,
    ) -> Entry:
        """What is under a name. ``first``: the first member of the wait queue."""
        fence = fence_of(fence_text)
        left = None if left_ms < 0 else left_ms / 1000
        record = (records.note_of if is_note(lock) else records.record_of)(value)
        if record is None:
            return Entry(lock, None, left, None, records.digest_of(value), None, waiters)
        began = None if fence is None else fence / 1_000_000
        waiting = None if first is None else records.record_of(value_of(first))
        since = None if waiting is None else waiting.get(SINCE, waiting.get("at"))
        return Entry(lock, record, left, fence, None, began, waiters, since)
