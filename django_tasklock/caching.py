"""``cached_once()``: a value of the cache that one caller computes, whoever else misses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.cache import caches

from ._engine.acquiring import How
from ._engine.lock import Block
from ._engine.names import make_name
from ._engine.waiting import blocking
from ._values.arguments import checked_seconds, checked_ttl, checked_wait
from ._values.words import logger, printable
from .conf import DEFAULT_ALIAS
from .exceptions import LockNotAcquired, StoreUnavailable

__all__ = ["cached_once"]

T = TypeVar("T")

_MISSING: Any = object()


def cached_once(
    key: str,
    produce: Callable[[], T],
    ttl: float | None,
    stale: float = 0,
    wait: float | None = 10,
    *,
    cache: str = "default",
    version: int | None = None,
    store: str = DEFAULT_ALIAS,
) -> T:
    """Return the value of ``key`` in Django's cache; if there is none, compute it once.

    Of all callers that find no value, in all processes, one calls ``produce`` and stores what it
    returns, which may be None. The others wait for that, and return it too.

    Args:
        key: the key in the cache.
        produce: a callable without arguments, which returns the value.
        ttl: seconds that the value is fresh. None: for ever.
        stale: seconds after that in which the old value is returned while one caller computes the
            new one.
        wait: seconds to wait for a value that somebody else computes. None: wait for ever.
        cache: an alias of the setting CACHES.
        version: as for Django's cache.
        store: the alias of the locks.

    The lock never keeps a value back: a caller that has waited in vain, or whose lock store does
    not answer, calls ``produce`` itself. If the caller that computes is killed, the next one
    computes. Raises what ``produce`` and the cache raise, and `TypeError` or `ValueError` for a
    wrong argument.
    """
    if ttl is not None:
        checked_ttl(ttl)
    checked_seconds(stale, "stale")
    checked_wait(wait)
    if iscoroutinefunction(produce) or not callable(produce):
        raise TypeError(f"produce must be a function, not async, without arguments: {produce!r}")
    # The second one lasts while a value is fresh that may be stale. So the key has the plain value,
    # for other code too.
    keys = [key, f"{key}:fresh"] if stale and ttl is not None else [key]
    cached = _Value(caches[cache], keys, version, ttl, stale)
    value, fresh = cached.look()
    if fresh:
        return value  # type: ignore[no-any-return]
    # The version that the cache has anyway is the same value, and so the same lock.
    usual = version in (None, cached.cache.version)
    name = make_name("cached", cache, key, *([] if usual else [version]))
    how = How(store, wait=wait if value is _MISSING else 0, renew=True)
    return cached.compute(produce, Block(how, name), value)


@dataclass
class _Value:
    """A value in a cache."""

    cache: Any
    keys: list[str]
    version: int | None
    ttl: float | None
    stale: float

    def look(self) -> tuple[Any, bool]:
        """Return the value, `_MISSING` if there is none; and whether it is fresh."""
        found = self.cache.get_many(self.keys, version=self.version)
        return found.get(self.keys[0], _MISSING), len(found) == len(self.keys)

    def keep(self, value: T) -> T:
        """Store the value, and return it."""
        lasts = None if self.ttl is None else self.ttl + self.stale
        self.cache.set(self.keys[0], value, lasts, version=self.version)
        for mark in self.keys[1:]:
            self.cache.set(mark, True, self.ttl, version=self.version)
        return value

    def compute(self, produce: Callable[[], T], block: Block, stale: Any) -> T:
        """Compute the value under the lock, unless somebody else does. Returns it, or ``stale``."""
        lease = None
        block.quiet = True  # Without an answer the lock is released later.
        try:
            lease = blocking(block.steps())
        except LockNotAcquired:
            if stale is not _MISSING:
                return stale  # type: ignore[no-any-return]
        except StoreUnavailable as error:
            logger.warning("computing %s without a lock: %s", block.name, printable(error))
            return self.keep(produce())
        with block:
            # Another one may have computed it meanwhile.
            value, fresh = self.look()
            if fresh or (lease is None and value is not _MISSING):
                return value  # type: ignore[no-any-return]
            made = produce()
            # After a loss of the lease the cache may have a newer one.
            return self.keep(made) if lease is None or lease.held else made
