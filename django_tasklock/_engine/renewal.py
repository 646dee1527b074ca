"""
Renewal: one daemon thread for each store, or for each shard of a store that has shards.

A lease is extended after a third of the time that is left of it, so two calls may fail before it is
over. After a failed call it is extended after a tenth of its ttl. A store's thread starts with the
store's first lease that is to be renewed, ends with the store object, and never uses the ORM. It
waits for its own store only: a server that hangs delays no other store's leases. A forked child has
no leases, and no thread until it needs one.
"""

from __future__ import annotations

import os
from contextlib import suppress

from .._values import clock
from .._values.weak_set import SharedWeakSet
from ..stores.base import BaseStore, Note
from .abandoned import Abandoned, OwedNote, Unsettled
from .lease import Lease
from .store_renewal import RENEWAL_SHARE, Entry, StoreRenewal

__all__ = ["Renewal", "renewal"]

RENEWAL_ATTRIBUTE = "_renewal"


class Renewal:
    """Extends leases until they are released, lost, or no longer referred to."""

    def __init__(self) -> None:
        self._all: SharedWeakSet[StoreRenewal] = SharedWeakSet()

    def of(self, store: BaseStore, name: str = "") -> StoreRenewal:
        """The renewal of one store, or of the shard of the store that has the lock ``name``."""
        attribute = RENEWAL_ATTRIBUTE + store.shard(name)
        own: StoreRenewal | None = vars(store).get(attribute)
        if own is None:
            own = vars(store).setdefault(attribute, StoreRenewal(store, self.of))
            self._all.add(own)
        return own

    def start(self, store: BaseStore, name: str) -> None:
        """Start the thread that would renew a lease of ``name``, if it does not run. Raises
        `RuntimeError` if the system starts none."""
        self.of(store, name).start()

    def add(self, lease: Lease, store: BaseStore) -> None:
        """Renew ``lease`` until it is over. The first time is early enough for its present
        deadline. Raises `RuntimeError` if the system starts no thread."""
        self.of(store, lease.name).schedule(lease, (lease._deadline - clock.now()) * RENEWAL_SHARE)

    def abandon(
        self,
        name: str,
        token: str,
        ttl: float,
        store: BaseStore,
        lease: Lease | None = None,
        note: Note | None = None,
    ) -> None:
        """Release a lease that nobody wants any more, as soon as the store answers.

        ``ttl``: the seconds for which it may still be in the store. ``lease`` is None where the
        caller never got one. ``note`` is what the release of ``lease`` was to write; without a
        lease what the acquire may have written, which is removed.
        """
        with suppress(RuntimeError):  # The system starts no thread: the lease ends by itself.
            until, name = clock.now() + ttl, store.keyed(name)
            note = note and keyed_note(store, note)
            self.of(store, name).settle_later(Abandoned(0, 0, 0, name, until, token, lease, note))

    def owe(
        self, name: str, note: Note, seconds: float, store: BaseStore, *, undo: bool = False
    ) -> None:
        """Write a note as soon as the store answers; with ``undo`` remove it, if it is this one.

        ``name``: the lock that it is about. ``seconds``: after which it is too late for that.
        """
        with suppress(RuntimeError):  # The system starts no thread.
            until, note = clock.now() + seconds, keyed_note(store, note)
            self.of(store, name).settle_later(OwedNote(0, 0, 0, name, until, note, undo))

    def entries(self) -> list[Entry | Unsettled]:
        """The entries of all stores."""
        return [entry for own in self._all for entry in own.entries()]

    def begin(self) -> None:
        """Forget everything, in a new process."""
        for own in self._all:
            own.begin()


def keyed_note(store: BaseStore, note: Note) -> Note:
    """The note as the renewal thread, which has no tenant, is to write it."""
    return note._replace(key=store.keyed_note(note.key))


renewal = Renewal()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewal.begin)
