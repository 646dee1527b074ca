"""Clearing many locks at once, as `LockService.clear` clears one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._values.keyed import Keyed
from .._values.lock_info import LockInfo
from ..stores.base import BaseStore
from .history import note_event, write_events
from .service import LockService

__all__ = ["clear_many", "get_seen"]


def get_seen(
    store: BaseStore, seen: Sequence[tuple[str, Callable[[LockInfo], bool]]]
) -> list[LockInfo | None]:
    """Return the holders of some locks, as `BaseStore.get_many` does, by their names.

    Beside each name stands what tells the lease that was seen. Where the keys depend on the thread
    it may have another key than this thread makes: it is looked for among all locks of that name.
    Raises `StoreUnavailable`.
    """
    holders = store.get_many([name for name, _ in seen])
    for at, (name, is_seen) in enumerate(seen):
        holder = holders[at]
        if holder is not None and is_seen(holder):
            continue
        if not isinstance(name, Keyed) and isinstance(store.keyed(name), Keyed):
            same_name = (info for info in store.list(name) if info.name == name)
            holders[at] = next(filter(is_seen, same_name), holder)
    return holders


def clear_many(
    service: LockService, holders: Sequence[LockInfo], *, by: str | None = None, noted: bool = True
) -> list[bool]:
    """Remove what holds some locks, each only if it still holds its lock.

    ``holders``: as the service's store has just returned them. ``by``: who cleared them, for the
    log. Each that was removed has its signal, and with ``noted`` its event of the history. Returns
    for each whether it was removed. Raises `StoreUnavailable`; some may be removed then.
    """
    store = service.store
    done = store.clear_many(holders) if holders else []
    for holder, cleared in zip(holders, done, strict=True):
        if cleared and noted:
            note_event(store.alias, "cleared", holder.name, holder.owner, by=by)
    # At once: a queue of events has no room for those of thousands of locks, and this process may
    # be a command that ends now.
    write_events(store.alias)
    for holder, cleared in zip(holders, done, strict=True):
        if cleared:
            service._cleared(store, holder.name, holder.token, holder, by)
    return done
