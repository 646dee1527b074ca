"""One call of a locked task: its run under the lock, and what happens without it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

from celery.exceptions import Ignore, Retry

from .._compat.celery import delays_natively
from .._engine.lease import Lease
from .._engine.skipping import reason_of
from .._values.lock_info import LockInfo
from .._values.slots import base_of
from ..exceptions import LockNotAcquired, StoreUnavailable
from ..stores.base import Note
from .beside import RunBeside
from .claim import NoWork
from .debounce import replaced_by
from .ending import reached
from .followup import FOLLOW_UP_CHECK_SECONDS
from .locked_run import VerdictUnknown, beside_name, held_leases
from .outcomes import tell_not_run
from .requeue import DeliverAgain, requeue_redelivery, retry_later
from .taking import Taking
from .turns import FIRST_RETRY_DELAY_SECONDS, LONGEST_RETRY_DELAY_SECONDS, turn_of
from .unique import give_up

__all__ = ["Run"]


class Run(Taking):
    """A call of ``task``. Calling it returns what the task returns, or raises.

    ``args`` and ``kwargs`` are for the body. ``call``: the direct call whose arguments another
    class of the task has turned into these.
    """

    def __call__(self) -> Any:
        reached(self.delivery)
        try:
            return self._call()
        except BaseException as error:
            if self.use.lease is not None and self.use.lease.held:
                # A signal handler raised it between two steps of the run.
                self.locked.release(self.use.lease, self.delivery.note_of_interruption())
            if isinstance(error, DeliverAgain) and not self.delivery.rejectable:
                delay = FIRST_RETRY_DELAY_SECONDS
                requeue_redelivery(self.delivery, self.args, self.kwargs, delay)
            if not self.delivery.comes_back(error):
                self._end_relied_on()
            raise

    def _call(self) -> Any:
        delivery = self.delivery
        for lease in held_leases.get():
            name = lease.name
            if self.slots > 1:
                name = "" if lease.slot is None else base_of(name, lease.owner.slots)
            if name == self.name and lease.store == self.task.lock_store and lease.held:
                # A call inside its own run, or one of another task with the same lock.
                if self.locked.body.is_covered_by(lease):
                    return self.task.call_body(lease, *self.called, own=delivery.own)
                return self.locked.work(lease)
        try:
            verdict = self._carry_out_verdict()
            later = None if verdict.starts else replaced_by(delivery, self.name)
            if later is not None:
                return self.locked.skip_replaced(later)
            won = self._take()
        except StoreUnavailable as error:
            return self._outage(error)
        return self._run_locked(won) if isinstance(won, Lease) else self._conflict(won)

    def _run_locked(self, lease: Lease) -> Any:
        try:
            return self.locked(lease)
        except VerdictUnknown as unknown:
            outage = unknown.error
        return self._outage(outage)

    def _conflict(self, holder: LockInfo, *, again: bool = True) -> Any:
        """Do what ``on_conflict`` says. ``again``: the lock may be tried once more."""
        task, delivery = self.task, self.delivery
        if delivery.queued and (delivery.is_by(holder) or self._may_have_begun(holder)):
            requeue_redelivery(delivery, self.args, self.kwargs, holder.ttl)
        taken, cooling = LockNotAcquired(self.name, holder), holder.cooling
        won: Lease | LockInfo | None = None
        try:
            if task.on_conflict == "retry" and delivery.queued:
                with suppress(LockNotAcquired):
                    within, turn = task.lock_retry_for, self._turn(holder)
                    retry_later(
                        delivery, self.args, self.kwargs, within=within, error=taken, turn=turn
                    )
            debounced = delivery.moment is not None
            if debounced and task.on_conflict in ("skip", "coalesce"):
                # Calls that it replaced rely on it. If a later one comes, it is replaced itself.
                self._wait_in_queue(holder, FOLLOW_UP_CHECK_SECONDS)
            coalesces = task.on_conflict == "coalesce" and delivery.queued
            if coalesces and self.locked.followup.wait_for():
                # A lock that cools ends when it says, unless an operator clears it.
                longest = LONGEST_RETRY_DELAY_SECONDS if cooling else FOLLOW_UP_CHECK_SECONDS
                self._wait_in_queue(holder, longest)
            if again and task.unique_while is not None and delivery.queued:
                # This message will not run. Calls that were refused because of it rely on a run
                # that starts after them, so the lock is tried once more after the reservation.
                give_up(delivery, self.name)
                won = self._acquire(0)
        except StoreUnavailable as error:
            return self._outage(error)
        if won is not None:
            if isinstance(won, Lease):
                return self._run_locked(won)
            return self._conflict(won, again=False)
        if task.on_conflict == "run":
            return self._run_beside(holder)
        if task.on_conflict in ("raise", "retry"):
            tell_not_run(task, "given_up", "held", delivery.id, self.name)
            raise taken
        return self.locked.skip("coalesced" if coalesces else reason_of(holder), holder.owner)

    def _wait_in_queue(self, holder: LockInfo, longest: float) -> NoReturn:
        """Requeue the message, on which other calls rely, until the lock is free."""
        turn = self._turn(holder, longest)
        retry_later(self.delivery, self.args, self.kwargs, expires=False, turn=turn)

    def _turn(self, holder: LockInfo, longest: float = LONGEST_RETRY_DELAY_SECONDS) -> float:
        whole = delays_natively(self.task.app)
        return turn_of(self.delivery, self.name, holder, self.slots, whole=whole, longest=longest)

    def _run_beside(self, holder: LockInfo) -> Any:
        """Run without the lock, which ``holder`` has."""
        delivery = self.delivery
        beside = RunBeside(delivery, self.name, self.args, self.kwargs, self.called, holder)
        self.locked = beside
        lease: Lease | None = None
        if delivery.survives:
            try:
                won = self._acquire(0, beside_name(delivery.id), renew=True)
            except StoreUnavailable as error:
                return self._outage(error)
            if not isinstance(won, Lease):
                requeue_redelivery(delivery, self.args, self.kwargs, won.ttl)
            lease = won
        try:
            return beside.alone() if lease is None else beside(lease)
        except VerdictUnknown as unknown:
            outage = unknown.error
        except NoWork:
            # Another run works on the row, or died while it did. It is left to the lock.
            if delivery.queued:
                retry_later(delivery, self.args, self.kwargs)
            return beside.skip(reason_of(holder), holder.owner)
        return self._outage(outage)

    def _may_have_begun(self, holder: LockInfo) -> bool:
        """Whether the message must not be skipped because no run of a message has the lock.

        It may have begun to run: a broker delivers it again, or it is a retry. The holder is an
        operator or other code, or the lock cools after a run that has ended, perhaps badly. So if
        this message were skipped, its job could be lost.
        """
        begun = self.delivery.redelivered or bool(self.delivery.request.retries)
        no_run = holder.cooling or not holder.owner.runs
        return no_run and begun and self.task.on_conflict == "skip"

    def _note_end(self, note: Note | None) -> None:
        """Note that a run without the lock has ended, if the store answers again."""
        if note is not None:
            with suppress(StoreUnavailable):
                self.locked.write(note)

    def _outage(self, error: StoreUnavailable) -> Any:
        """Do what ``on_outage`` says."""
        task, delivery, body = self.task, self.delivery, self.locked.body
        if task.on_outage == "run":
            # Before the body reads anything, if the store answers again; if not, after it.
            self._end_relied_on()
            try:
                result = body(None)
                self._note_end(delivery.note_of_end())
            except (Retry, Ignore):
                self._note_end(delivery.note_of_end(goes_on=True))
                raise
            except NoWork as refused:
                if body.is_claimed():
                    # By another run, or by one that died: only the lock could show which.
                    if delivery.queued:
                        retry_later(delivery, self.args, self.kwargs)
                    raise error from None
                result = self.locked.skip_row(refused.row)
            self._end_relied_on()
            return result
        if task.on_outage == "retry" and delivery.queued:
            retry_later(delivery, self.args, self.kwargs)
        tell_not_run(task, "given_up", "outage", delivery.id, self.name)
        raise error
