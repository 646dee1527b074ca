"""What a lease asks of the service that granted it."""

from __future__ import annotations

from . import clock
from .arguments import checked_ttl
from .lease import HELD, LOST, RELEASED, Lease
from .renewal import renewal
from .signals import lock_lost, lock_released
from .stores.base import BaseStore, Note

__all__ = ["Keeper"]


class Keeper:
    """Releases and extends leases of one store, and notes what becomes of them."""

    @property
    def store(self) -> BaseStore:
        """The store of the leases."""
        raise NotImplementedError

    def release(self, lease: Lease, note: Note | None = None) -> bool:
        """`Lease.release`; with a note that the store writes in the same step."""
        if not lease.held or not lease._end(RELEASED):
            return False
        lease.renew = False
        try:
            released = self.store.release(lease.name, lease.token, lease._proof, note)
        except BaseException:
            # It stands until its deadline, no longer renewed; a later call may succeed.
            lease._state = HELD
            raise
        if not released:
            lease._state = HELD
            self.lost(lease, "the store no longer had it at its release")
            return False
        if lock_released.receivers:
            lock_released.send_robust(type(self), lease=lease)
        return True

    def extend(self, lease: Lease, ttl: float) -> bool:
        """`Lease.extend`."""
        ttl = checked_ttl(ttl)
        store, began, said = self.store, [False], None
        started = clock.now()
        try:
            if not lease._extending(began):
                return False
            said = store.extend(lease.name, lease.token, ttl, lease._proof)
        finally:
            lease._extended(began, started + ttl, said)
            if lease.renew:
                # It may have been made shorter, also where no reply came.
                renewal.add(lease, store)
        if said:
            lease.ttl = ttl
        else:
            self.lost(lease, "the store no longer has it")
        return said

    def lost(self, lease: Lease, reason: str) -> None:
        """Note that a lease is gone: once, and for good."""
        if lease._end(LOST, reason):
            lock_lost.send_robust(type(self), lease=lease, reason=reason)
