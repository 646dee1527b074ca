"""Locks in any Django cache, through ``cache.add``, its only atomic call."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import ceil, inf
from typing import Any, TypeAlias, TypeVar

from django.core.cache import BaseCache, InvalidCacheKey, caches
from django.core.cache.backends.db import DatabaseCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.memcached import BaseMemcachedCache
from django.core.exceptions import SynchronousOnlyOperation

from .._values import clock
from .._values.interruptions import interrupts
from .._values.processes import OfProcess
from .._values.tokens import new_token
from ..conf import StoreSettings
from ..exceptions import StoreUnavailable
from . import records
from .base import BaseStore, Extension, Note
from .contract import ATTEMPTS
from .records import FREE, KEEP, Change, Done, Entry, Held, Record, after, fits, is_note, is_there

# How much of a lease must be left for a change of it (of a short lease: a quarter). It must be
# longer than the time between reading a record and writing it.
MARGIN_SECONDS = 0.5
# For how long only one caller may remove the lease of another process, or adopt it: longer than the
# time between reading its record and changing it.
CLEARING_SECONDS = 5.0
# In a record's text: when the lease ends, in seconds since the epoch.
ENDS = "ends"
# Leases of this process that are kept in mind before those that are over are forgotten.
TIDY_AFTER = 1024
# Bytes, where Django counts characters.
LONGEST_MEMCACHED_KEY = 250
# In the place of the value of a key that is not there.
ABSENT = object()
# pylibmc's and pymemcache's errors for an ``incr`` of another value. By their names: the packages
# need not be installed.
NO_NUMBER = frozenset({"ClientError", "MemcacheClientError"})
NO_SUCH_NAME = "the cache cannot hold a lock of this name"
NOT_WRITTEN = "the database did not write what the cache was given"

T = TypeVar("T")
# Whether a change was made, and what is there now.
Made: TypeAlias = tuple[bool, Entry | None]


class CacheStore(BaseStore):
    """One key for each lock. It promises less than the other stores.

    The cache API has no compare-and-delete. So a change of a lease reads the record first, and is
    made only while the lease will last for `MARGIN_SECONDS` more; otherwise the key is left to
    expire. A process that stops between the two for longer than that may hit the next holder's
    record (``atomic_release`` is False). Leases have no fence, and it cannot list. Several changes
    are made one after the other.

    Many caches count in whole seconds, so a key may live three seconds longer than its lease. The
    record has the exact end of the lease.
    """

    atomic_release = False
    puts_together = False
    supports_listing = False
    supports_fence = False
    uses_cache = True

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        cache: Any = self.cache
        # Asked of this one: another thread makes a cache of its own, in its first call.
        self._counts_fractions = isinstance(cache, LocMemCache | FileBasedCache)
        self._is_memcached = isinstance(cache, BaseMemcachedCache)
        self._is_database = isinstance(cache, DatabaseCache)
        # Whether a record that was added was seen to be there.
        self._keeps = False
        # Until when each lease of this process may be changed, on `clock.now`, by token.
        self._own_of = OfProcess[dict[str, float]](dict)
        options = getattr(cache, "_options", None) or {}
        if getattr(cache, "_ignore_exceptions", False) or options.get("ignore_exc"):
            raise settings.wrong(
                f"its cache {settings.cache!r} hides its errors (IGNORE_EXCEPTIONS or ignore_exc), "
                "so an outage would look like a lock. Turn that off, or give the locks a cache of "
                "their own"
            )

    @property
    def _own(self) -> dict[str, float]:
        return self._own_of.own()

    @property
    def cache(self) -> BaseCache:
        """The cache of this thread: the clients of some caches are not thread-safe."""
        return caches[self.settings.cache]

    def key(self, name: str) -> str:
        """The key of a lock."""
        return str(self.cache.make_key(self._key(name)))

    def get(self, names: Sequence[str]) -> list[Entry | None]:
        return [self._entry(name) for name in names]

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        if len(changes) > 1:
            return self.put_in_turn(changes, [(self.put, [at]) for at in range(len(changes))])
        (change,) = changes
        if change.expect == FREE and isinstance(change.record, Mapping):
            made, entry = self._add(change, change.record)
        else:
            made, entry = self._change(change)
        return Done(made, [entry])

    def release(self, name: str, token: str, note: Note | None = None) -> bool:
        if note is not None:
            return super().release(name, token, note)
        made, (entry,) = self.put([Change(name, Held(token), None)])
        # It has held the lock to this very moment, and is left to its end.
        return made or (entry is not None and entry.token == token and not self._lasts(entry))

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        # One that is too near to its end to be changed is held until then: it is not lost yet.
        own = self._own
        return [
            self.extend(*each) or (None if own.get(each.token, inf) < clock.now() else False)
            for each in batch
        ]

    def _add(self, change: Change, record: Record) -> Made:
        """Add a record where there is none. One that is there already gets its ttl, if it will last
        for the margin: another token may have the key by then."""
        key, lifetime = self._key(change.name), self._lifetime(change.ttl)
        for _ in range(ATTEMPTS):
            until, text = _lasting(record, change.ttl)
            if self._call(lambda: self.cache.add(key, text, lifetime)):  # noqa: B023
                if not self._keeps:
                    self._assert_keeps(key, text, lifetime, until)
                added = Entry(change.name, record, change.ttl)
                self._remember(added, until)
                return True, added
            entry = self._entry(change.name)
            if entry is not None:
                if not is_there(change, entry) or not self._lasts(entry):
                    return False, entry
                return True, self._write(change, entry, own=True)
            # It expired between the two calls, or it cannot be written.
            self._assert_writes()
        raise StoreUnavailable(self.alias, f"the cache neither adds nor finds {key!r}")

    def _change(self, change: Change) -> Made:
        """Remove what is there, write over it, or give it another end. A lease must last for the
        margin.

        Several find the owner of a lease dead at the same moment, or adopt one version of it. One
        of them changes it: the last one would hit the next lease.
        """
        expect, entry = change.expect, self._entry(change.name)
        lease = expect if isinstance(expect, Held) and not is_note(change.name) else None
        if lease is not None and fits(change, entry) and not is_there(change, entry):
            removes = change.record is None and lease.token not in self._own
            adopts = isinstance(change.record, Mapping) and lease.version is not None
            if removes or adopts:
                if not self._is_first(lease):
                    return False, entry
                entry = self._entry(change.name)
        lasts = lease is None or entry is None or self._lasts(entry)
        if not (lasts and fits(change, entry)):
            return False, entry
        if change.record is None:
            return entry is None or self._is_removed(entry), None
        is_own = lease is not None and change.record == KEEP
        if isinstance(change.record, Mapping) and lease and entry and entry.record:
            # The lease has begun once.
            change = change._replace(record={**change.record, "at": entry.record.get("at")})
        return True, self._write(change, entry, own=is_own)

    def _is_removed(self, entry: Entry) -> bool:
        key = self._key(entry.name)
        deleted = bool(self._call(lambda: self.cache.delete(key)))
        if not deleted:
            self._assert_answers(key)
        self._own.pop(entry.token or "", None)
        return deleted

    def _write(self, change: Change, there: Entry | None, *, own: bool) -> Entry | None:
        """Write what is there after a change. ``own``: this process holds the lease from now on."""
        entry = after(change, there, None)
        if entry is None or entry.record is None or entry is there:
            return entry  # It stays as it is.
        key, (until, text) = self._key(entry.name), _lasting(entry.record, entry.left)
        self._call(lambda: self.cache.set(key, text, self._lifetime(entry.left)))
        if self._is_database and self._found(key) != text:
            raise StoreUnavailable(self.alias, NOT_WRITTEN)
        self._own.pop(entry.record["token"], None)
        if own:
            self._remember(entry, until)
        return entry

    def _remember(self, lease: Entry, until: float) -> None:
        """Keep in mind until when this process, which holds a lease, may change it."""
        if lease.left is None or is_note(lease.name):
            return
        if len(self._own) >= TIDY_AFTER:
            for token in [each for each, last in [*self._own.items()] if last < clock.now()]:
                self._own.pop(token, None)
        self._own[str(lease.token)] = until - _margin(lease.left)

    def _lasts(self, entry: Entry) -> bool:
        """Whether a lease will last for long enough to change it: by this process's clock if it is
        its own, and otherwise by the wall clocks of the two hosts. A note may be changed at any
        time."""
        if (last := self._own.get(entry.token or "")) is not None:
            return clock.now() <= last
        if entry.left is None or entry.record is None or is_note(entry.name):
            return True
        return entry.left >= _margin(entry.left + time.time() - (entry.record.get("at") or 0.0))

    def _is_first(self, lease: Held) -> bool:
        """Whether no other caller is about to remove this lease, or to replace this version."""
        key = self._key(f" changes {lease.token} {lease.version}")
        lifetime = self._lifetime(CLEARING_SECONDS)
        first = bool(self._call(lambda: self.cache.add(key, 1, lifetime)))
        if not first:
            self._assert_answers(key)
            self._assert_writes()
        return first

    def _entry(self, name: str) -> Entry | None:
        held = self._found(self._key(name))
        if held is ABSENT:
            return None
        record = dict(records.record_of(held) or {}) if isinstance(held, str) else {}
        ends = record.pop(ENDS, None)
        if not record:
            # The cache has decoded it.
            value = self._call(lambda: pickle.dumps(held, 4))
            return Entry(name, None, None, None, records.digest_of(value))
        return Entry(name, record, None if ends is None else max(0.0, ends - time.time()))

    def _key(self, name: str) -> str:
        """The key of a lock, or of a note, before the cache makes its own of it."""
        if is_note(name):
            # It may be longer than a cache's keys, and has spaces.
            digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            return f"{self.settings.key_prefix}.note:{digest}"
        key = super().key(name)
        size = len(self.cache.make_key(key).encode()) if self._is_memcached else 0
        if size > LONGEST_MEMCACHED_KEY:
            raise ValueError(f"{NO_SUCH_NAME}: its key has {size} bytes, and may have 250")
        return key

    def _lifetime(self, ttl: float | None) -> float | None:
        # Two caches know fractions of a second. The others cut them off the ttl, and some cut them
        # off the time of day as well, which Memcached reads once a second: it may be two behind.
        return ttl if ttl is None or self._counts_fractions else ceil(ttl) + 2

    def _found(self, key: str) -> Any:
        """The value of a key, which may be None if other code set it; `ABSENT` without a key."""
        value = self._call(lambda: self.cache.get(key, ABSENT))
        if value is ABSENT or value is None:
            self._assert_answers(key)
        return value

    def _assert_keeps(self, key: str, text: str, lifetime: float | None, until: float) -> None:
        """Raise `InvalidLockConfig` if the cache has not what it said it added, as a DummyCache.

        Asked until it was there once: no later lease costs another call. ``until``, on `clock.now`,
        it must be there; or else after it was added once more, since somebody may just have cleared
        the cache.
        """
        for _ in range(2):
            if self._found(key) is not ABSENT:
                self._keeps = True
                return
            self._call(lambda: self.cache.add(key, text, lifetime))
        if clock.now() < until:
            raise self.settings.wrong(
                f"it uses the cache {self.settings.cache!r}, a {type(self.cache).__name__}: it "
                "grants every lock to everybody. Use Redis, Memcached or a DatabaseStore for the "
                "locks; in tests, a MemoryStore"
            )

    def _assert_writes(self) -> None:
        """Raise `StoreUnavailable` if a database takes no writes.

        Django's cache in a database raises nothing for a write that failed, as on a replica, with
        a full disk, or while another transaction keeps SQLite's file locked: its ``add`` returns
        False, as for a key that is there, and its ``set`` nothing.
        """
        key = self._key(f" {new_token()}")
        if self._is_database and not self._call(lambda: self.cache.add(key, 1, 1)):
            raise StoreUnavailable(self.alias, NOT_WRITTEN)

    def _assert_answers(self, key: str) -> None:
        """Raise `StoreUnavailable` if the last call for the key may not have reached its server.

        After an error, pymemcache finds and writes no keys of that server for a second, and raises
        nothing. Of several servers, only a call for this very key is made on the same one.
        """
        if self._is_memcached and self._call(lambda: self._is_silent(key)):
            raise StoreUnavailable(
                self.alias, "its server does not answer: keys are neither found nor added"
            )

    def _is_silent(self, key: str) -> bool:
        try:
            # It changes nothing, and is False where a server would say None or a number.
            return self.cache.incr(key, 0) is False
        except Exception as error:
            # `ValueError`: there is no such key.
            if not isinstance(error, ValueError) and type(error).__name__ not in NO_NUMBER:
                raise
            return False

    def _call(self, call: Callable[[], T]) -> T:
        """What ``call`` returns. Raises `StoreUnavailable` for any exception of the client."""
        try:
            return call()
        except Exception as error:
            # Django's own caches in a database refuse an event loop: that is the caller's mistake.
            if interrupts(error) or isinstance(error, SynchronousOnlyOperation):
                raise
            if isinstance(error, InvalidCacheKey):
                raise ValueError(f"{NO_SUCH_NAME}: {error}") from error
            raise StoreUnavailable(self.alias, str(error) or type(error).__name__) from error


def _margin(ttl: float) -> float:
    """How much of a lease must be left for a change of it."""
    return min(MARGIN_SECONDS, ttl / 4)


def _lasting(record: Record, ttl: float | None) -> tuple[float, str]:
    """When a record that is written now is over, on `clock.now`, and its text, which says it by the
    wall clock."""
    if ttl is None:
        return inf, records.text_of_record(record)
    return clock.now() + ttl, records.text_of_record({**record, ENDS: time.time() + ttl})
