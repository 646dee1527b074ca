"""What is held, as operators look at it: lease by lease."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from .._engine.service import LockService
from .._values.lock_info import LockInfo
from .._values.slots import base_of, permit_name
from ..exceptions import ListingNotSupported
from ..stores import stores

MOST_PROBED = 100  # permits that are looked for on a store that cannot list


def held_permits(service: LockService, name: str) -> list[LockInfo]:
    """Return the held permits of ``name`` (``slots=N``), by number. Raises `StoreUnavailable`."""
    try:
        found = service.list(f"{name}#")
    except ListingNotSupported:
        names = [permit_name(name, slot) for slot in range(1, MOST_PROBED + 1)]
        found = [info for info in service.store.find_many(names) if info is not None]
    held = [info for info in found if info.slot and base_of(info.name, info.owner.slots) == name]
    return sorted(held, key=lambda info: info.slot or 0)


def held_of(locks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], LockInfo]:
    """Return what holds each of ``locks``, an alias of a store and a name, that is held.

    Raises `StoreUnavailable`, and `InvalidLockConfig` for an alias that does not exist.
    """
    by_store: dict[str, dict[str, None]] = {}
    for alias, name in locks:
        by_store.setdefault(alias, {})[name] = None
    return {
        (alias, name): info
        for alias, names in by_store.items()
        for name, info in zip(names, stores[alias].find_many(list(names)), strict=True)
        if info is not None
    }


def digest_of(info: LockInfo) -> str:
    """Return what tells a lease from all others, but proves nothing and clears nothing: for a page
    that a user sees who may only look. Of a key that other code set it tells the value."""
    seen = info.digest or "" if info.token is None else info.token
    return hashlib.sha256(seen.encode()).hexdigest()[:32]


def as_seen(service: LockService, name: str, digest: str) -> LockInfo | None:
    """Return what holds the lock ``name`` now if it is the lease with this `digest_of`, else None.

    Raises `StoreUnavailable`.
    """
    return service.store.find_lease([name], lambda holder: digest_of(holder) == digest)
