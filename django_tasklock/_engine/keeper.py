"""What a lease asks of the service that granted it."""

from __future__ import annotations

import time
from functools import partial

from .._values import clock
from .._values.arguments import checked_ttl
from ..signals import lock_lost, lock_released
from ..stores.base import BaseStore, Note
from . import cooling
from .aio.lanes import off_loop
from .causes import cause_of_loss
from .extensions import await_extensions
from .history import note_event, write_noted
from .lease import Lease
from .lease_state import GIVEN_UP, LOST, RELEASED
from .renewal import renewal

__all__ = ["Keeper"]

NOTED_POLL_SECONDS = 0.001
"""the pause between two looks whether the renewal thread has noted a release"""


class Keeper:
    """Releases and extends leases of one store, and notes what becomes of them."""

    @property
    def store(self) -> BaseStore:
        """The store of the leases."""
        raise NotImplementedError

    def release(self, lease: Lease, note: Note | None = None) -> bool:
        """`Lease.release`, with a note that the store writes in the same step.

        Raises `StoreUnavailable`; the lease is held again then, and `Lease.release` gives it up.
        """
        if not lease.held or not lease._end(RELEASED):
            return self._release_again(lease, note)
        lease.renew = False
        try:
            released = self._release(lease, note)
        except BaseException:
            lease._hold_on()
            raise
        if not released:
            lease._hold_on()
            self.lost(lease, "the store no longer had it at its release")
            return False
        write_noted(lease.store)
        if lock_released.receivers:
            self._tell_released(lease)
        return True

    def _tell_released(self, lease: Lease) -> None:
        held = clock.now() - lease._since
        lock_released.send_robust(type(self), lease=lease, template=lease.template, held=held)

    def _release_again(self, lease: Lease, note: Note | None) -> bool:
        """Whether an interrupted release has released the lease: True once. Tries again if that is
        not known yet."""
        if not lease._is_mine():
            return False
        if lease._state == GIVEN_UP and clock.now() < lease._deadline:
            if self._release(lease, note):
                self.released(lease)
            else:
                # The renewal thread may have released it, and wait for the reply.
                own = renewal.of(self.store, lease.name)
                while own.releasing is lease and clock.now() < lease._deadline:
                    time.sleep(NOTED_POLL_SECONDS)
        return lease._tell_release()

    def _release(self, lease: Lease, note: Note | None) -> bool:
        if lease._extensions() and not self.store.atomic_release:
            # A renewal that is under way would write the lease again, or over the next holder's.
            await_extensions(lease)
        if lease._cooling is not None:
            return cooling.release(self.store, lease, lease._cooling, note)
        if note is None:
            return self.store.release(lease.name, lease.token, lease._proof)
        return self.store.release_with_note(lease.name, lease.token, lease._proof, note)

    def give_up(self, lease: Lease, note: Note | None = None) -> None:
        """Have the renewal thread release a lease that nobody wants any more, and write the note.

        Without that, a short outage or an interruption would leave the lock held for the rest of
        the ttl.
        """
        if lease._give_up():
            left = lease._deadline - clock.now()
            renewal.abandon(lease.name, lease.token, left, self.store, lease, note)
            note_event(lease.store, "given up", lease.name, lease._record)

    def released(self, lease: Lease) -> bool:
        """Note that a lease which was given up is released. False: another call has noted it."""
        if not lease._given_back():
            return False
        if lock_released.receivers:
            self._tell_released(lease)
        return True

    def extend(self, lease: Lease, ttl: float) -> bool:
        """`Lease.extend`, for ``ttl`` seconds from now.

        Raises `StoreUnavailable`, and `TypeError` or `ValueError` for a wrong ttl.
        """
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
        """Note that a lease is lost, and send `lock_lost`: once, and for good.

        On an event loop, which a receiver must not block, it is sent in a thread, soon.
        """
        if not lease._end(LOST, reason):
            return
        if lock_lost.receivers:
            told = {"template": lease.template, "held": clock.now() - lease._since}
            told |= {"reason": reason, "cause": cause_of_loss(reason)}
            off_loop(partial(lock_lost.send_robust, type(self), lease=lease, **told))
        note_event(lease.store, "lost", lease.name, lease._record, reason=reason)
