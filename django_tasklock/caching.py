"""``cached_once()``: a value of the cache that one caller computes, whoever else misses it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.cache import caches

from ._engine.acquiring import Acquiring, How
from ._engine.lease import Lease, Use
from ._engine.names import make_name
from ._engine.waiting import blocking
from ._values.arguments import checked_ttl, checked_wait
from ._values.lock_info import LockInfo
from ._values.words import printable
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
    if stale != 0:
        checked_ttl(stale, "stale")
    checked_wait(wait)
    if iscoroutinefunction(produce) or not callable(produce):
        raise TypeError(f"produce must be a function, not async, without arguments: {produce!r}")
    values: Any = caches[cache]
    # It lasts while a value is fresh that may be stale. So the key has the plain value, for other
    # code too.
    mark = f"{key}:fresh" if stale and ttl is not None else None

    def look() -> tuple[Any, bool]:
        """Return the value, `_MISSING` if there is none; and whether it is fresh."""
        keys = [key] if mark is None else [key, mark]
        found = values.get_many(keys, version=version)
        return found.get(key, _MISSING), len(found) == len(keys)

    def keep(value: T) -> T:
        """Store the value, and return it."""
        values.set(key, value, None if ttl is None else ttl + stale, version=version)
        if mark is not None:
            values.set(mark, True, ttl, version=version)
        return value

    value, fresh = look()
    if fresh:
        return value  # type: ignore[no-any-return]
    # The version that the cache has anyway is the same value, and so the same lock.
    usual = version is None or version == values.version
    name = make_name("cached", cache, key, *([] if usual else [version]))
    use, patience = Use(), wait if value is _MISSING else 0
    try:
        won = blocking(Acquiring(How(store, wait=patience, renew=True), name, use).steps())
    except StoreUnavailable as error:
        logger.warning("computing %s without a lock: %s", printable(name), printable(error))
        return keep(produce())
    try:
        if value is _MISSING or isinstance(won, Lease):
            # Another one may have computed it meanwhile.
            value, fresh = look()
        if fresh or (value is not _MISSING and isinstance(won, LockInfo)):
            return value  # type: ignore[no-any-return]
        made = produce()
        # After a loss of the lease the cache may have a newer one.
        return keep(made) if isinstance(won, LockInfo) or won.held else made
    finally:
        # Without an answer the lock is released later.
        use.end(failed=True)
