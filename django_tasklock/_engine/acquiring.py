"""Taking a lock: the steps of an acquire, and the takeover of a lock whose owner is dead."""

from __future__ import annotations

from typing import Any

from .._values import clock
from .._values.arguments import (
    checked_flag,
    checked_name,
    checked_token,
    checked_ttl,
    checked_wait,
)
from .._values.describe import place
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.slots import checked_slots
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..signals import lock_acquired, lock_cleared, lock_contended, lock_unavailable
from ..stores.base import BaseStore, Grant, Note, Refusal
from . import lease_state
from .all_at_once import AllAtOnce
from .causes import BY_TAKEOVER, cause_of_clear
from .cooling import CoolingTimes, cooling_times
from .handing_on import HandingOn
from .history import LONG_WAIT_SECONDS, note_event
from .lease import Lease
from .permits import PermitAttempt
from .renewal import renewal
from .running import record_here
from .steps import Steps, blocking, driven, steps_of
from .use import Use
from .waiting import Attempt

__all__ = ["Acquiring"]


class Acquiring(HandingOn):
    """The part of `LockService` that takes a lock. Its leases may be detached."""

    def acquire(
        self,
        name: str,
        *,
        ttl: float | None = None,
        wait: float | None = 0,
        renew: bool = False,
        slots: int = 1,
        hold_at_least: float = 0,
    ) -> Lease | None:
        """Take the lock ``name``. Returns the lease; None if the lock is still held after ``wait``.

        ``ttl``: seconds that the lease lasts; None, the store's TTL. ``wait``: seconds to wait for
        the lock; 0 does not wait, None waits for ever. ``renew``: extend the lease until it is
        released, garbage-collected, or its process ends. ``slots``: as for `lock`.
        ``hold_at_least``: after the release the lock stays taken until so many seconds after it was
        acquired.

        Raises `InvalidLockConfig` for ``hold_at_least`` on a store that cannot do that, besides
        what every method raises.
        """
        use, times = Use(None), cooling_times(hold_at_least)
        options = {"ttl": ttl, "wait": wait, "renew": renew, "slots": slots}
        blocking(self._acquiring(name, use, times, **options))
        return self._taken(use, times)

    def _acquiring(
        self, name: str, use: Use, times: CoolingTimes | None, **options: Any
    ) -> Steps[Lease | LockInfo]:
        """The steps of `acquire`, for ``use``, which gets the lease."""
        if times is not None:
            times.check(self.store)
        return (yield from steps_of(self.try_acquire)(name, use=use, **options))

    def _taken(self, use: Use, times: CoolingTimes | None) -> Lease | None:
        """Take the lease that ``use`` got, if it got one, out of it."""
        if times is not None:
            use.cool(times)
        lease, use.lease = use.lease, None
        return lease

    @driven
    def try_acquire(
        self,
        name: str,
        *,
        ttl: float | None = None,
        wait: float | None = 0,
        renew: bool = False,
        task: str | None = None,
        task_id: str | None = None,
        token: str | None = None,
        note: Note | None = None,
        use: Use | None = None,
        group: int | None = None,
        slots: int = 1,
        together: AllAtOnce | None = None,
    ) -> Steps[Lease | LockInfo]:
        """As `acquire`, but return the `LockInfo` of the present holder where that returns None.

        ``task``, ``task_id`` and ``group`` (the id of a process group) are recorded in the owner;
        a lock without ``task`` and ``task_id`` has those of the Celery task that takes it.
        ``token``: one that `new_token` made, for a process that releases what another process
        acquires. ``note``: the store writes it with the lease, on most stores in the same round
        trip, unless its key has another text: `Use.note_kept`. ``use`` gets the lease as soon as
        there is one, because an exception from a signal handler may come before this method
        returns.

        Raises `StoreUnavailable`, and `TypeError` or `ValueError` for a wrong argument.
        """
        store = self.store
        if use is not None:
            use.note_kept = False
        template = None if use is None else use.template
        name = store.keyed(checked_name(name))
        ttl = store.settings.ttl if ttl is None else checked_ttl(ttl)
        wait = checked_wait(wait)
        checked_flag("renew", renew)
        if together is not None:
            token = together.token(name)
        token = new_token() if token is None else checked_token(token)
        record = record_here(task, task_id)
        record["ttl"], record["renew"] = ttl, renew
        if group is not None:
            record["group"] = group
        permit: PermitAttempt | None = None
        if checked_slots(slots) > 1:
            record["slots"], deadline = slots, None if wait is None else clock.now() + wait
            permit = PermitAttempt(store, name, token, ttl, record, deadline, self._take_over, note)
        if renew:
            renewal.start(store, name)
        asked = started = clock.now()
        process = lease_state.process
        answer: Grant | Refusal | None = None
        lease: Lease | None = None
        attempt: Attempt | None = None
        try:
            if permit is not None:
                answer, started = yield from permit.acquire()
            elif together is not None and (said := together.answer(name, ttl, record)) is not None:
                answer, started = said
            elif wait == 0:
                if note is None:
                    answer = store.acquire(name, token, ttl, record)
                else:
                    answer = store.acquire_with_note(name, token, ttl, record, note)
            if permit is None and (
                answer is None or isinstance(answer, Refusal) or clock.now() >= started + ttl
            ):
                deadline = None if wait is None else asked + wait
                attempt = Attempt(store, name, token, ttl, record, deadline, self._take_over, note)
                if answer is None:
                    answer, started = (yield from attempt.queue_at_once()) or attempt._ask()
                if isinstance(answer, Refusal) or clock.now() >= started + ttl:
                    answer, started = yield from attempt.acquire_with_wait(answer, started)
            assert answer is not None
            if lease_state.process != process:
                raise RuntimeError("this process was forked from one that asked for a lock here")
            if isinstance(answer, Refusal):
                self._contended(store, name, answer.holder, record, asked, template, wait)
                return answer.holder
            if note is not None and not answer.noted:
                kept = store.reserve(note.key, note.text, note.ttl) is not None
                if use is not None:
                    use.note_kept = kept
            taken = name if permit is None else permit.taken
            lease = Lease(
                self, self.alias, taken, token, answer.fence, ttl, started + ttl, record,
                answer.proof, renew, answer.left,
            )  # fmt: skip
            lease.template = template
            if use is not None:
                use.lease = lease
            if wait != 0 and (waited := clock.now() - asked) > LONG_WAIT_SECONDS:
                # Others wait until this one has done its work. Written by the release, or renewal.
                note_event(store.alias, "waited", taken, record, seconds=waited, soon=False)
            if renew:
                renewal.add(lease, store)
            if lock_acquired.receivers:
                waited, met = clock.now() - asked, (permit or attempt)
                lock_acquired.send_robust(
                    type(self), lease=lease, template=template, waited=waited,
                    holder=None if met is None else met.met,
                )  # fmt: skip
            return lease
        except BaseException as error:
            if lease_state.process != process:
                raise  # What was granted is the parent's.
            # The store may have granted the lock, though its answer was not read.
            if lease is not None:
                self.give_up(lease)
            elif permit is not None:
                permit.abandon()
            else:
                renewal.abandon(name, token, ttl, store, note=note)
            if lock_unavailable.receivers and isinstance(error, StoreUnavailable):
                lock_unavailable.send_robust(
                    type(self), name=name, store=store.alias, template=template,
                    waited=clock.now() - asked, wait=wait, error=error,
                )  # fmt: skip
            raise

    contend = try_acquire  # Its old name.

    def _take_over(self, store: BaseStore, holder: LockInfo) -> bool:
        """Clear the lock if its owner is known to be dead. Returns whether to ask again."""
        if not store.takeover or holder.token is None or holder.owner.alive() is not False:
            return False
        now = store.get(holder.name)
        if now is not None and (now.token, now.owner) != (holder.token, holder.owner):
            return True  # Its lease goes on in another process, or without one.
        # Also if nobody holds the lock: of a quorum, a few members may still have that lease, and
        # refuse, because its process ended before they answered its release.
        if store.clear(holder.name, holder.token):
            by = place(Owner.current())
            note_event(store.alias, "taken over", holder.name, holder.owner, by=by)
            self._cleared(store, holder.name, holder.token, holder, BY_TAKEOVER)
        return True

    def _contended(
        self,
        store: BaseStore,
        name: str,
        holder: LockInfo,
        record: dict[str, Any],
        asked: float,
        template: str | None,
        wait: float | None,
    ) -> None:
        """Send `lock_contended`. ``asked``: when the call began, on `clock.now`."""
        waited = clock.now() - asked
        note_event(store.alias, "refused", name, record, holder=holder, seconds=waited)
        if lock_contended.receivers:
            lock_contended.send_robust(
                type(self),
                name=name,
                store=store.alias,
                holder=holder,
                owner=Owner.from_record(record),
                waited=waited,
                template=template,
                wait=wait,
            )

    def _cleared(
        self,
        store: BaseStore,
        name: str,
        token: str | None,
        holder: LockInfo | None,
        by: str | None,
    ) -> None:
        lock_cleared.send_robust(
            type(self), name=name, store=store.alias, token=token, holder=holder, by=by,
            cause=cause_of_clear(by),
        )  # fmt: skip
