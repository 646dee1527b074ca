"""Leases in any Django cache, through ``cache.add``."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

from django.core.cache import BaseCache, InvalidCacheKey, caches
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.memcached import BaseMemcachedCache

from .. import clock
from ..conf import StoreSettings
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..lease import LockInfo, new_token
from .base import BaseStore, Extension, Finding, Grant, Note, Refusal
from .record import digest_of, fields_of, interrupts, new_record, record_of, token_of

__all__ = ["CacheStore"]

T = TypeVar("T")

MARGIN = 0.5
"""seconds of a lease that must be left for a release or an extension to act on it (a quarter
of a short lease): longer than what passes between reading a record and acting on it"""


class _Deadline:
    """The proof that this store hands out: when, on `clock.now`, the lease is over."""

    __slots__ = ("at", "ttl")

    def __init__(self, at: float, ttl: float) -> None:
        self.at = at
        self.ttl = ttl


class CacheStore(BaseStore):
    """One record a lock, added by ``cache.add``: all that a Django cache does atomically.

    The cache API has no compare-and-delete. So extend and release read the record first, and
    act only while the lease is ours and has a margin of its life left; otherwise they leave
    the key to expire. A process that is held up between the two for longer than the margin
    can still hit its successor's record: such a cache cannot promise what Redis can
    (``atomic_release`` is False). Its leases have no fence, and it cannot list.

    Many caches count in whole seconds, so a key may live two seconds longer than its lease;
    the record carries the lease's own end.
    """

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        cache: Any = self.cache
        options = getattr(cache, "_options", None) or {}
        if getattr(cache, "_ignore_exceptions", False) or options.get("ignore_exc"):
            raise InvalidLockConfig(
                f"the cache {settings.cache!r} swallows its errors (IGNORE_EXCEPTIONS or "
                f"ignore_exc): the lock store {self.alias!r} could not tell an outage from a lock"
            )

    @property
    def cache(self) -> BaseCache:
        """The cache, one a thread, as Django's cache clients expect."""
        return caches[self.settings.cache]

    def key(self, name: str) -> str:
        """The physical name of a lock."""
        return str(self.cache.make_key(self._cache_key(name)))

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        grant = Grant(proof=_Deadline(clock.now() + ttl, ttl))
        record = {**new_record(token, owner), "ends": time.time() + ttl}
        for _ in range(2):
            if self._add(name, record, ttl):
                return grant
            held = self._read(name)
            if token_of(held) == token:
                self._write(name, record, ttl)
                return grant
            if held is not None:
                break
            # It ran out between the two: once more.
        return Refusal(self._info(name, held))

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        held = self._ours(name, token, proof)
        if held is None:
            return False
        ends = clock.now() + ttl
        self._write(name, {**held, "ends": time.time() + ttl}, ttl)
        if proof is not None:
            proof.at, proof.ttl = ends, ttl
        return True

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        return [self.extend(*extension) for extension in batch]

    def release(self, name: str, token: str, proof: Any = None, note: Note | None = None) -> bool:
        if self._ours(name, token, proof) is None:
            return False
        if note is not None:
            self.remember(note)
        return self._delete(name)

    def recall(self, key: str) -> str | None:
        text = self._found(self._note_key(key))
        return text if isinstance(text, str) else None

    def remember(self, note: Note) -> None:
        key, lifetime = self._note_key(note.key), self._lifetime(note.ttl)
        if note.text:
            self._said(lambda: self.cache.set(key, note.text, lifetime))
        else:
            self._said(lambda: self.cache.delete(key))

    def tally(self, key: str, ttl: float, by: int = 1) -> int:
        key, lifetime = self._note_key(key), self._lifetime(ttl)
        while not self._said(lambda: self.cache.add(key, by, lifetime)):
            count = self._said(lambda: _incremented(self.cache, key, by))
            if count is not None:
                self._said(lambda: self.cache.touch(key, lifetime))
                return count
        return by

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
            return holder
        if self._said(lambda: self.cache.add(key, text, lifetime)):
            return None
        other = self._said(lambda: self.cache.get(key))
        if other not in (None, text, over):
            return str(other)
        self._said(lambda: self.cache.set(key, text, lifetime))
        return None

    def unreserve(self, key: str, text: str) -> bool:
        key = self._note_key(key)
        if self._said(lambda: self.cache.get(key)) != text:
            return False
        return bool(self._said(lambda: self.cache.delete(key)))

    def _note_key(self, key: str) -> str:
        # A note's name may hold several others, and a cache's key has 250 characters.
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return f"{self.settings.key_prefix}.note:{digest}"

    def clear(self, name: str, token: str | None = None) -> bool:
        if token is not None and token_of(self._read(name)) != token:
            return False
        return self._delete(name)

    def get(self, name: str) -> LockInfo | None:
        held = self._read(name)
        return None if held is None else self._info(name, held)

    def check(self) -> Iterable[Finding]:
        self._read("check")
        return ()

    def _ours(self, name: str, token: str, proof: _Deadline | None) -> dict[str, Any] | None:
        """The record, if this lease still holds the lock and will for a while."""
        if proof is not None and proof.at - clock.now() < min(MARGIN, proof.ttl / 4):
            return None
        held = self._read(name)
        record = record_of(held)
        if record is None or record.token != token:
            return None
        if proof is None:
            # Only the record's own clock, which may be another host's.
            ends, at = record.ends, record.at
            if ends is None or at is None:
                return None
            if ends - time.time() < min(MARGIN, (ends - at) / 4):
                return None
        return dict(held)

    def _info(self, name: str, held: Any) -> LockInfo:
        record = record_of(held)
        ends = None if record is None else record.ends
        ttl = None if ends is None else max(0.0, ends - time.time())
        found = fields_of(record, self.key(name), digest=None if record else _digest(held))
        return LockInfo(name=name, ttl=ttl, store=self.alias, **found)

    def _cache_key(self, name: str) -> str:
        prefix = self.settings.key_prefix
        return f"{prefix}:{name}" if prefix else name

    def _lifetime(self, ttl: float) -> float:
        # A second more where the cache drops fractions of its own clock as well.
        return ttl if isinstance(self.cache, LocMemCache | FileBasedCache) else ceil(ttl) + 1

    def _add(self, name: str, record: dict[str, Any], ttl: float) -> bool:
        key, lifetime = self._cache_key(name), self._lifetime(ttl)
        return bool(self._said(lambda: self.cache.add(key, record, lifetime)))

    def _read(self, name: str) -> Any:
        return self._found(self._cache_key(name))

    def _found(self, key: str) -> Any:
        value = self._said(lambda: self.cache.get(key))
        if value is None:
            self._assert_answers()
        return value

    def _assert_answers(self) -> None:
        """Raise `StoreUnavailable` if that there is no such key may be no answer at all.

        For a second after an error pymemcache finds nothing and raises nothing.
        """
        if isinstance(self.cache, BaseMemcachedCache):
            key = self._note_key(new_token())
            if not self._said(lambda: self.cache.add(key, 1, 1)):
                raise StoreUnavailable(self.alias, "it neither finds a key nor adds one")

    def _write(self, name: str, record: dict[str, Any], ttl: float) -> None:
        key, lifetime = self._cache_key(name), self._lifetime(ttl)
        self._said(lambda: self.cache.set(key, record, lifetime))

    def _delete(self, name: str) -> bool:
        key = self._cache_key(name)
        deleted = bool(self._said(lambda: self.cache.delete(key)))
        if not deleted:
            self._assert_answers()
        return deleted

    def _said(self, call: Callable[[], T]) -> T:
        """What the cache says. Its clients raise whatever they like when it is out of reach."""
        try:
            return call()
        except InvalidCacheKey as error:
            raise ValueError(f"the cache cannot hold a lock of this name: {error}") from error
        except Exception as error:
            if interrupts(error):
                raise
            raise StoreUnavailable(self.alias, str(error) or type(error).__name__) from error


def _digest(held: Any) -> str:
    """`digest_of` a value that the cache has decoded already."""
    try:
        return digest_of(pickle.dumps(held, 4))
    except Exception as error:
        if interrupts(error):
            raise
        return digest_of(type(held).__qualname__.encode())


def _incremented(cache: BaseCache, key: str, by: int) -> int | None:
    try:
        return cache.incr(key, by)
    except ValueError:
        return None  # The count ran out in this moment.
