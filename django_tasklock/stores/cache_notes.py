"""Notes and reservations in any Django cache, and how its errors are understood."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import ceil
from typing import Any, TypeVar

from django.core.cache import BaseCache, InvalidCacheKey, caches
from django.core.cache.backends.db import DatabaseCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.memcached import BaseMemcachedCache

from .._values.lock_info import LockInfo
from .._values.tokens import new_token
from ..conf import StoreSettings
from ..exceptions import InvalidLockConfig, StoreUnavailable
from .base import BaseStore, Note
from .record import interrupts

__all__ = ["ABSENT", "CacheNotes"]

LONGEST_MEMCACHED_KEY = 250
"""bytes, where Django counts characters"""
ABSENT = object()
"""in the place of the value of a key that is not there"""
NO_NUMBER = frozenset({"ClientError", "MemcacheClientError"})
"""pylibmc's and pymemcache's, for an ``incr`` of another value. By their names: the packages need
not be installed"""
NO_SUCH_NAME = "the cache cannot hold a lock of this name"
NOT_WRITTEN = "the database did not write what the cache was given"

T = TypeVar("T")


class CacheNotes(BaseStore):
    """The part of `CacheStore` that is not about leases. Each note is a key of the cache."""

    uses_cache = True

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        cache: Any = self.cache
        # Asked of this one: another thread makes a cache of its own, in its first call.
        self._counts_fractions = isinstance(cache, LocMemCache | FileBasedCache)
        self._is_memcached = isinstance(cache, BaseMemcachedCache)
        self._is_database = isinstance(cache, DatabaseCache)
        options = getattr(cache, "_options", None) or {}
        if getattr(cache, "_ignore_exceptions", False) or options.get("ignore_exc"):
            raise InvalidLockConfig(
                f"the cache {settings.cache!r} swallows its errors (IGNORE_EXCEPTIONS or "
                f"ignore_exc): the lock store {self.alias!r} could not distinguish an outage "
                "from a lock"
            )

    @property
    def cache(self) -> BaseCache:
        """The cache of this thread: the clients of some caches are not thread-safe."""
        return caches[self.settings.cache]

    def get_note(self, key: str) -> str | None:
        text = self._found(self._note_key(key))
        return text if isinstance(text, str) else None

    def set_note(self, note: Note) -> None:
        key, lifetime = self._note_key(note.key), self._lifetime(note.ttl)
        if note.text:
            self._put(key, note.text, lifetime)
        else:
            self._call(lambda: self.cache.delete(key))
        self._assert_answers(key)

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        key, lifetime = self._note_key(key), self._lifetime(ttl)
        if unless_held is not None and (holder := self.get(unless_held)) is not None:
            there = self._found(key)
            if there != text:
                return holder if there in (ABSENT, over) else str(there)
        if self._call(lambda: self.cache.add(key, text, lifetime)):
            return None
        other = self._found(key)
        if other not in (ABSENT, text, over):
            return str(other)
        self._put(key, text, lifetime)
        return None

    def unreserve(self, key: str, text: str) -> bool:
        key = self._note_key(key)
        if self._found(key) != text:
            return False
        return bool(self._call(lambda: self.cache.delete(key)))

    def _cache_key(self, name: str) -> str:
        prefix = self.settings.key_prefix
        key = f"{prefix}:{name}" if prefix else name
        if self._is_memcached:
            size = len(self.cache.make_key(key).encode())
            if size > LONGEST_MEMCACHED_KEY:
                raise ValueError(f"{NO_SUCH_NAME}: its key has {size} bytes, and may have 250")
        return key

    def _note_key(self, key: str) -> str:
        # A note's key may be longer than the 250 characters that a cache's key may have.
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return f"{self.settings.key_prefix}.note:{digest}"

    def _lifetime(self, ttl: float) -> float:
        # These two know fractions of a second. The others cut them off the ttl, and some cut them
        # off the time of day as well.
        return ttl if self._counts_fractions else ceil(ttl) + 1

    def _found(self, key: str) -> Any:
        """The value of a key, which may be None if other code set it; `ABSENT` without a key."""
        value = self._call(lambda: self.cache.get(key, ABSENT))
        if value is ABSENT or value is None:
            self._assert_answers(key)
        return value

    def _put(self, key: str, value: Any, lifetime: float) -> None:
        self._call(lambda: self.cache.set(key, value, lifetime))
        if self._is_database and self._found(key) != value:
            raise StoreUnavailable(self.alias, NOT_WRITTEN)

    def _assert_writes(self) -> None:
        """Raise `StoreUnavailable` if a database takes no writes.

        Django's cache in a database raises nothing for a write that failed, as on a replica, with
        a full disk, or while another transaction keeps SQLite's file locked: its ``add`` returns
        False, as for a key that is there, and its ``set`` nothing.
        """
        key = self._note_key(new_token())
        if self._is_database and not self._call(lambda: self.cache.add(key, 1, 1)):
            raise StoreUnavailable(self.alias, NOT_WRITTEN)

    def _assert_answers(self, key: str) -> None:
        """Raise `StoreUnavailable` if the last call for the key may not have reached its server.

        After an error, pymemcache finds and writes no keys of that server for a second, and raises
        nothing. Of several servers, only a call for this very key is made on the same one.
        """
        if self._is_memcached and self._call(lambda: self._is_silent(key)):
            raise StoreUnavailable(self.alias, "it neither finds a key nor adds one")

    def _is_silent(self, key: str) -> bool:
        try:
            # It changes nothing, and is False where a server would say None or a number.
            return self.cache.incr(key, 0) is False
        except ValueError:
            return False  # There is no such key.
        except Exception as error:
            if type(error).__name__ not in NO_NUMBER:
                raise
            return False

    def _call(self, call: Callable[[], T]) -> T:
        """What ``call`` returns. Raises `StoreUnavailable` for any exception of the client."""
        try:
            return call()
        except Exception as error:
            if interrupts(error):
                raise
            if isinstance(error, InvalidCacheKey):
                raise ValueError(f"{NO_SUCH_NAME}: {error}") from error
            raise StoreUnavailable(self.alias, str(error) or type(error).__name__) from error
