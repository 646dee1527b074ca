"""``cached_once()``: a value of the cache that one caller computes, whoever else misses it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.cache import caches

from ._engine.names import make_name
from ._engine.service import LockService
from ._engine.use import Use
from ._values.arguments import checked_ttl, checked_wait
from ._values.describe import printable
from ._values.lock_info import LockInfo
from .conf import DEFAULT_ALIAS
from .exceptions import StoreUnavailable

__all__ = ["cached_once"]

logger = logging.getLogger("django_tasklock")

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

    ``produce``: a callable without arguments. ``ttl``: seconds that the value is fresh; None, for
    ever. ``stale``: seconds after that in which the old value is returned while one caller computes
    the new one. ``wait``: seconds to wait for a value that somebody else computes; None, for ever.
    ``cache``: an alias of the setting CACHES. ``version``: as for Django's cache. ``store``: the
    alias of the locks.

    The lock never keeps a value back: a caller that has waited in vain, or whose lock store does
    not answer, calls ``produce`` itself. If the caller that computes is killed, the next one
    computes. Raises what ``produce`` and the cache raise, and `TypeError` or `ValueError` for a
    wrong argument.
    """
    if ttl is not None:
        checked_ttl(ttl)
    if stale != 0:
        checked_ttl(stale, "stale")
    checked_wait(wait)
    _check_produce(produce)
    entry = _Entry(caches[cache], key, version, ttl, stale)
    value, fresh = entry.look()
    if fresh:
        return value  # type: ignore[no-any-return]
    # The version that the cache has anyway is the same value, and so the same lock.
    usual = version is None or version == caches[cache].version
    name = make_name("cached", cache, key, *([] if usual else [version]))
    use = Use(None)
    try:
        won = LockService(store).try_acquire(
            name, wait=wait if value is _MISSING else 0, renew=True, use=use
        )
    except StoreUnavailable as error:
        logger.warning("computing %s without a lock: %s", printable(name), printable(error))
        return entry.keep(produce())
    if isinstance(won, LockInfo):
        if value is _MISSING:
            value, _ = entry.look()
        return value if value is not _MISSING else entry.keep(produce())
    try:
        # Another one may have computed it meanwhile.
        value, fresh = entry.look()
        if fresh:
            return value  # type: ignore[no-any-return]
        made = produce()
        # After a loss of the lease the cache may have a newer one.
        return entry.keep(made) if won.held else made
    finally:
        # Without an answer the lock is released later.
        with suppress(StoreUnavailable):
            won.release()


def _check_produce(produce: Any) -> None:
    if not callable(produce) or iscoroutinefunction(produce):
        raise TypeError(f"produce is a function without arguments, and not async: {produce!r}")


class _Entry:
    """A value of the cache, and beside it, where it may be stale, a mark that lasts while it is
    fresh. So the key has the plain value, for other code too."""

    def __init__(
        self, cache: Any, key: str, version: int | None, ttl: float | None, stale: float
    ) -> None:
        self._cache = cache
        self._key = key
        self._version = version
        self._ttl = ttl
        self._stale = stale if ttl is not None else 0
        self._mark = f"{key}:fresh"

    def look(self) -> tuple[Any, bool]:
        """Return the value, `_MISSING` if there is none; and whether it is fresh."""
        if not self._stale:
            value = self._cache.get(self._key, _MISSING, version=self._version)
            return value, value is not _MISSING
        found = self._cache.get_many([self._key, self._mark], version=self._version)
        value = found.get(self._key, _MISSING)
        return value, value is not _MISSING and self._mark in found

    def keep(self, value: T) -> T:
        """Store the value, and return it."""
        lasts = None if self._ttl is None else self._ttl + self._stale
        self._cache.set(self._key, value, lasts, version=self._version)
        if self._stale:
            self._cache.set(self._mark, True, self._ttl, version=self._version)
        return value
