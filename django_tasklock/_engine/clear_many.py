"""Clearing many locks at once, as `LockService.clear` clears one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._values.keyed import Keyed
from .._values.lock_info import LockInfo
from ..stores.base import BaseStore
from .history import note_event, write_events
from .service import LockService

__all__ = ["as_seen", "clear_many"]


def as_seen(store: BaseStore, name: str, is_seen: Callable[[LockInfo], bool]) -> str:
    """Return the name of a lock with the key that its holder has, if this thread makes another one.

    Where the keys depend on the thread, the holder is looked for among all locks of that name.
    ``is_seen`` says which one is meant. Raises `StoreUnavailable`.
    """
    if not isinstance(name, Keyed) and isinstance(store.keyed(name), Keyed):
        for info in store.list(name):
            if info.name == name and is_seen(info):
                return info.name
    return name


def clear_many(
    service: LockService, holders: Sequence[LockInfo], *, by: str | None = None
) -> list[bool]:
    """Remove what holds some locks, each only if it still holds its lock.

    ``holders``: as the service's store has just returned them. ``by``: who cleared them, for the
    log. Each that was removed has its signal and its event of the history. Returns for each
    whether it was removed. Raises `StoreUnavailable`; some may be removed then.
    """
    store = service.store
    done = store.clear_many(holders) if holders else []
    for holder, cleared in zip(holders, done, strict=True):
        if cleared:
            note_event(store.alias, "cleared", holder.name, holder.owner, by=by)
    # At once: a queue of events has no room for those of thousands of locks, and this process may
    # be a command that ends now.
    write_events(store.alias)
    for holder, cleared in zip(holders, done, strict=True):
        if cleared:
            service._cleared(store, holder.name, holder.token, holder, by)
    return done
