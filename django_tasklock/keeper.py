"""What a lease asks of the service that granted it."""

from __future__ import annotations

from . import clock
from .arguments import checked_ttl
from .lease import GIVEN_UP, LOST, RELEASED, Lease
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
        """`Lease.release`, which says what becomes of it where this is interrupted; with a note
        that the store writes in the same step."""
        if not lease.held or not lease._end(RELEASED):
            return self._release_again(lease, note)
        lease.renew = False
        try:
            released = self.store.release(lease.name, lease.token, lease._proof, note)
        except BaseException:
            lease._hold_on()
            raise
        if not released:
            lease._hold_on()
            self.lost(lease, "the store no longer had it at its release")
            return False
        if lock_released.receivers:
            lock_released.send_robust(type(self), lease=lease)
        return True

    def _release_again(self, lease: Lease, note: Note | None) -> bool:
        """What came of a release that was interrupted, told once; unless it is known, try again."""
        if not lease._is_mine():
            return False
        if (
            lease._state == GIVEN_UP
            and clock.now() < lease._deadline
            and self.store.release(lease.name, lease.token, lease._proof, note)
        ):
            self.released(lease)
        return lease._tell_release()

    def give_up(self, lease: Lease) -> None:
        """Have a lease that nobody wants any more released beside us: an outage of a moment, or an
        exception that came in this very moment, must not leave it for the whole of its ttl."""
        if lease._give_up():
            left = lease._deadline - clock.now()
            renewal.abandon(lease.name, lease.token, left, self.store, lease)

    def released(self, lease: Lease) -> bool:
        """Note that a lease which was given up is released."""
        if not lease._given_back():
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
