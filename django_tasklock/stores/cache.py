"""Leases in any Django cache, through ``cache.add``."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._values import clock
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig
from .base import Finding, Grant, Note, Refusal
from .cache_notes import ABSENT, CacheNotes
from .record import digest_of, info_of_record, interrupts, new_record, record_of, token_of

__all__ = ["CacheStore"]

RELEASE_MARGIN_SECONDS = 0.5
"""how much of a lease must be left for a release or an extension to act on it (of a short lease: a
quarter); it must be longer than the time between reading a record and writing it"""
CLEARING_SECONDS = 5.0
"""for how long only one caller may clear a given lease: longer than the time between reading its
record and deleting it"""


@dataclass(slots=True)
class _Deadline:
    """The proof of this store's leases (`Grant.proof`)."""

    at: float
    """when the lease is over, on `clock.now`"""
    ttl: float
    """seconds"""


class CacheStore(CacheNotes):
    """One record for each lock, written by ``cache.add``, the only atomic call of a Django cache.

    The cache API has no compare-and-delete. So extend and release read the record first, and act
    only while the lease is ours and will last for `RELEASE_MARGIN_SECONDS` more; otherwise they
    leave the key to expire. A process that stops between the two for longer than that may remove
    the next holder's record: a cache cannot promise what Redis can (``atomic_release`` is False).
    Its leases have no fence, and it cannot list.

    `rewrite` reads and writes in the same way. Of several callers that expect the same mark, only
    one may write: the one whose ``cache.add`` of a key for that mark was the first.

    Many caches count in whole seconds, so a key may live two seconds longer than its lease. The
    record has the exact end of the lease.
    """

    supports_rewrite = True
    _keeps = False
    """whether a record that it added was seen to be there"""

    def key(self, name: str) -> str:
        """The key of a lock."""
        return str(self.cache.make_key(self._cache_key(name)))

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        grant = Grant(proof=_Deadline(clock.now() + ttl, ttl))
        record = {**new_record(token, owner), "ends": time.time() + ttl}
        for _ in range(2):
            if self._add(name, record, ttl):
                if not self._keeps:
                    self._assert_keeps(name, record, ttl, grant.proof.at)
                return grant
            held = self._read(name)
            if token_of(held) == token and not self._ends_soon(held):
                self._write(name, record, ttl)
                return grant
            if held is not ABSENT:
                break
            # It expired between the two calls: try once more.
        else:
            self._assert_writes()
        return Refusal(self._info(name, None if held is ABSENT else held))

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        held = self._ours(name, token, proof)
        if held is None:
            return False
        ends = clock.now() + ttl
        self._write(name, {**held, "ends": time.time() + ttl}, ttl)
        if proof is not None:
            proof.at, proof.ttl = ends, ttl
        return True

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        after = _Deadline(clock.now() + ttl, ttl)
        held = self._ours(name, token, proof)
        record = record_of(held)
        if held is None or record is None:
            return None
        new = {**new_record(token, owner, record.at), "ends": time.time() + ttl}
        if mark is not None and {**held, "ends": new["ends"]} != new:
            only, who = self._note_key(f"rewriting {token} {mark}"), _digest(dict(owner))
            if record.owner.mark != mark:
                return None
            first = self._call(lambda: self.cache.add(only, who, self._lifetime(ttl)))
            # It may have been this very call, whose reply was lost.
            if not first and (there := self._found(only)) != who:
                if there is ABSENT:
                    self._assert_writes()
                return None
        self._write(name, new, ttl)
        return Grant(proof=after)

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        return self._ours(name, token, proof) is not None and self._delete(name)

    def release_with_note(self, name: str, token: str, proof: Any, note: Note) -> bool:
        if self._ours(name, token, proof) is None:
            return False
        self.set_note(note)
        return self._delete(name)

    def clear(self, name: str, token: str | None = None) -> bool:
        if token is None:
            return self._delete(name)
        # Several find the owner of a lock dead at the same time. If each deleted what it has read,
        # the last of them would delete the lease of the first.
        began, only = clock.now(), self._note_key(f"clearing {token}")
        if not self._call(lambda: self.cache.add(only, 1, self._lifetime(CLEARING_SECONDS))):
            self._assert_answers(only)
            self._assert_writes()
            return False
        held = self._read(name)
        if token_of(held) != token or self._ends_soon(held):
            return False
        return clock.now() - began < CLEARING_SECONDS and self._delete(name)

    def get(self, name: str) -> LockInfo | None:
        held = self._read(name)
        return None if held is ABSENT else self._info(name, held)

    def check(self) -> Iterable[Finding]:
        self._read("check")
        return ()

    def _ours(self, name: str, token: str, proof: _Deadline | None) -> dict[str, Any] | None:
        """The record, if this lease holds the lock and will hold it for a while."""
        if proof is not None and proof.at - clock.now() < min(
            RELEASE_MARGIN_SECONDS, proof.ttl / 4
        ):
            return None
        held = self._read(name)
        record = record_of(held)
        if record is None or record.token != token:
            return None
        if proof is None and self._ends_soon(held):
            return None
        return dict(held)

    @staticmethod
    def _ends_soon(held: Any) -> bool:
        """Whether the lease ends within the margin, by the wall clock of the host that wrote it."""
        record = record_of(held)
        if record is None or record.ends is None or record.at is None:
            return True
        margin = min(RELEASE_MARGIN_SECONDS, (record.ends - record.at) / 4)
        return record.ends - time.time() < margin

    def _info(self, name: str, held: Any) -> LockInfo:
        record = record_of(held)
        ends = None if record is None else record.ends
        ttl = None if ends is None else max(0.0, ends - time.time())
        digest = None if record else _digest(held)
        return info_of_record(record, name, ttl, self.alias, self.key(name), digest=digest)

    def _add(self, name: str, record: dict[str, Any], ttl: float) -> bool:
        key, lifetime = self._cache_key(name), self._lifetime(ttl)
        return bool(self._call(lambda: self.cache.add(key, record, lifetime)))

    def _assert_keeps(self, name: str, record: dict[str, Any], ttl: float, until: float) -> None:
        """Raise `InvalidLockConfig` if the cache has not what it said it added.

        So does a DummyCache. Asked until it was there once: no later lease costs another call.
        ``until``, on `clock.now`, it must be there; or else after it was added once more, since
        somebody may just have cleared the cache.
        """
        for first in (True, False):
            if self._read(name) is not ABSENT:
                self._keeps = True
                return
            if first:
                self._add(name, record, ttl)
        if clock.now() < until:
            raise InvalidLockConfig(
                f"the lock store {self.alias!r} uses the cache {self.settings.cache!r}, a "
                f"{type(self.cache).__name__}: it grants every lock to everybody. Use Redis, "
                "Memcached or a DatabaseStore for the locks; in tests, a MemoryStore"
            )

    def _read(self, name: str) -> Any:
        return self._found(self._cache_key(name))

    def _write(self, name: str, record: dict[str, Any], ttl: float) -> None:
        key, lifetime = self._cache_key(name), self._lifetime(ttl)
        self._put(key, record, lifetime)

    def _delete(self, name: str) -> bool:
        key = self._cache_key(name)
        deleted = bool(self._call(lambda: self.cache.delete(key)))
        if not deleted:
            self._assert_answers(key)
        return deleted


def _digest(held: Any) -> str:
    """`digest_of` for a value that the cache has decoded."""
    try:
        return digest_of(pickle.dumps(held, 4))
    except Exception as error:
        if interrupts(error):
            raise
        return digest_of(type(held).__qualname__.encode())
