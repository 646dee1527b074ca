"""
Renewal: one daemon thread for each store.

A lease is due after a third of what is left of it, so that two calls may fail before it is over;
after a failure it is due again after a tenth of its ttl. A store's thread starts with the first
lease of it that asks for that, ends with the store, and never touches the ORM. It waits for its own
store only: a server that hangs makes no other store's leases late. A forked child has no leases,
and no thread until it needs one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from weakref import WeakSet

from . import clock
from .lease import Lease
from .store_renewal import FRACTION, Abandoned, Entry, StoreRenewal
from .stores.base import BaseStore

__all__ = ["Renewal", "renewal"]

ATTRIBUTE = "_renewal"


class Renewal:
    """Extends leases until they are released, lost, or no longer referred to."""

    def __init__(self) -> None:
        self._all: WeakSet[StoreRenewal] = WeakSet()

    def of(self, store: BaseStore) -> StoreRenewal:
        """The renewal of one store."""
        own: StoreRenewal | None = vars(store).get(ATTRIBUTE)
        if own is None:
            own = vars(store).setdefault(ATTRIBUTE, StoreRenewal(store))
            self._all.add(own)
        return own

    def start(self, store: BaseStore) -> None:
        """Start the store's thread, unless it runs. Raises `RuntimeError` if none is to be had."""
        self.of(store).start()

    def add(self, lease: Lease, store: BaseStore) -> None:
        """Extend ``lease`` from now on, and in time for its deadline of this moment. It leaves by
        itself when it is over."""
        self.of(store).schedule(lease, (lease._deadline - clock.now()) / FRACTION)

    def abandon(
        self, name: str, token: str, ttl: float, store: BaseStore, lease: Lease | None = None
    ) -> None:
        """Release a lease that stands though nobody wants it, as soon as the store answers."""
        with suppress(RuntimeError):  # No thread is to be had: it ends by itself.
            self.of(store).abandon(name, token, clock.now() + ttl, lease)

    def entries(self) -> list[Entry | Abandoned]:
        """The entries of all stores."""
        return [entry for own in list(self._all) for entry in own.entries()]

    def begin(self) -> None:
        """Forget everything, in a new process."""
        for own in list(self._all):
            own.begin()


renewal = Renewal()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewal.begin)
