"""One run of a locked task, from the call to what the caller is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Retry

from ..exceptions import LockNotAcquired, NotPutBack, StoreUnavailable, TooManyAttempts
from ..lease import Lease, LockInfo
from ..renewal import renewal
from ..stores.base import Note
from .body import Body, NoWork
from .calling import Call
from .delivery import Delivery
from .exiting import running
from .followup import FollowUp
from .requeue import put_back, retry_later
from .unique import give_up, reserve_again

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["Run"]

logger = logging.getLogger("django_tasklock")

AN_INSTANT = 0.5
"""seconds until a run that broke off is started over"""
A_MOMENT = 1.0
"""seconds that a redelivered message waits for the run it is a copy of, which may be ending"""

_held: ContextVar[tuple[Lease, ...]] = ContextVar("tasklock_held", default=())


class Unasked(Exception):
    """Whether the run is still wanted could not be asked."""

    def __init__(self, error: StoreUnavailable) -> None:
        super().__init__(error)
        self.error = error


class Run:
    """A call of ``task``. Calling it returns what the task returns, or raises.

    ``args`` and ``kwargs`` are for the body. ``call``: the direct call that another class of the
    task has made them of.
    """

    def __init__(
        self,
        task: LockedTask,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Call | None = None,
    ) -> None:
        self.task = task
        self.delivery = delivery = Delivery(task)
        self.called = args, kwargs
        if delivery.own:
            # Another class of the task may have made something else of what was sent.
            args, kwargs = delivery.request.args or (), delivery.request.kwargs or {}
        elif call is not None:
            args, kwargs = call.args, call.kwargs
        self.args = args
        self.kwargs = kwargs
        self.name: str = task.lock_name_of(args, kwargs)
        self.followup = FollowUp(delivery, self.name)
        self.body = Body(
            task, self.name, args, kwargs,
            survives=delivery.survives, own=delivery.own, called=self.called,
        )  # fmt: skip

    def __call__(self) -> Any:
        try:
            return self._call()
        except BaseException as error:
            self.followup.failed(error)
            if isinstance(error, NotPutBack):
                with suppress(StoreUnavailable):
                    give_up(self.delivery, self.name)
            raise

    def _call(self) -> Any:
        for lease in _held.get():
            if lease.name == self.name and lease.store == self.task.lock_store and lease.held:
                # Called inside its own run: the lock is ours already, and so is the row.
                own = self.delivery.own
                return self.task.call_body(lease, *self.called, own=own)
        try:
            if self.delivery.copy:
                self._drop_if_late()
            won = self._contend(self.task.lock_wait)
            if not isinstance(won, Lease) and (self.delivery.copy or self.delivery.is_by(won)):
                # The same message runs, or is ending, elsewhere; or another copy only looks.
                won = self._contend(A_MOMENT)
        except StoreUnavailable as error:
            return self._outage(error)
        if not isinstance(won, Lease):
            return self._conflict(won)
        return self._won(won)

    def _start(self, lease: Lease) -> dict[str, Any] | None:
        """Called under the lock, before anything else is done. A value: nothing is to be done."""
        try:
            try:
                self.delivery.assert_wanted(self.args, self.kwargs)
            except BaseException:
                # A copy that is dropped gives it up as well.
                with suppress(StoreUnavailable):
                    give_up(self.delivery, self.name)
                raise
            # Before anything is looked at.
            give_up(self.delivery, self.name)
            if self.delivery.queued and self.task.on_conflict == "coalesce":
                return None if self.followup.begin() else self._skip("coalesced", None)
        except StoreUnavailable as error:
            raise Unasked(error) from error
        except TooManyAttempts:
            try:
                self.body.refuse(lease.fence)
            except Exception:
                # A silent database, say: that is not why the job is given up.
                logger.exception("the row of %s could not be left", self.name)
            raise
        return None

    def _drop_if_late(self) -> None:
        try:
            self.delivery.drop_if_late(self.args, self.kwargs)
        except Ignore:
            with suppress(StoreUnavailable):
                give_up(self.delivery, self.name)
            raise

    def _contend(self, wait: float | None) -> Lease | LockInfo:
        task, delivery = self.task, self.delivery
        try:
            won = task.locks.contend(
                self.name,
                ttl=task.lock_ttl,
                wait=wait,
                renew=task.lock_renew,
                task=task.name,
                task_id=delivery.id,
                token=delivery.token,
                note=delivery.note_of_start(),
            )
        except BaseException as error:
            if not isinstance(error, Exception):
                delivery.interrupted()
            raise
        if isinstance(won, Lease):
            delivery.started()
        return won

    def _won(self, lease: Lease) -> Any:
        running[lease] = self.delivery
        try:
            return self._with(lease)
        finally:
            running.pop(lease, None)

    def _with(self, lease: Lease) -> Any:
        delivery, note, broke_off = self.delivery, None, False
        outage: StoreUnavailable | None = None
        context = _held.set((*_held.get(), lease))
        try:
            result = self._start(lease)
            if result is None:
                try:
                    result = self._work(lease)
                except (Retry, Ignore):
                    # Its own message goes on from here (`Task.retry`, `Task.replace`).
                    note = delivery.note_of_end(goes_on=True)
                    raise
            note = delivery.note_of_end()
        except Unasked as unasked:
            outage = unasked.error
        except BaseException as error:
            broke_off = self.body.broke_off(error, lease)
            if not broke_off:
                reserve_again(delivery, self.name, error)
                raise
        finally:
            _held.reset(context)
            released = self._leave(lease, note or delivery.note_of_break())
        if outage is not None:
            return self._outage(outage)
        if broke_off:
            self._start_over(lease)
        if not released and self.task.guard is None:
            # Nothing but the lease said that this run counts.
            lease.assert_held()
        return result

    def _work(self, lease: Lease | None) -> Any:
        try:
            return self.body(lease)
        except NoWork:
            return self._skip("invalid_state", None)

    def _start_over(self, lease: Lease) -> NoReturn:
        """The body broke off because its lease was lost: whose is the work now?"""
        delivery = self.delivery
        try:
            self.task.clear_lost(lease)
            holder = self.task.locks.get(lease.name)
        except StoreUnavailable:
            holder = None
        if holder is None:
            put_back(delivery, self.args, self.kwargs, AN_INSTANT)
        if delivery.is_by(holder):
            raise Ignore("another copy of this message runs")
        lease.assert_held()
        raise AssertionError("a lost lease is not held")

    def _leave(self, lease: Lease, note: Note | None) -> bool:
        try:
            return self.task.locks.release(lease, note)
        except BaseException as error:
            # Tried again beside us: a lease of hours must not stand for a moment's outage, or
            # for a soft time limit that came in this very moment.
            renewal.abandon(lease.name, lease.token, lease.remaining, self.task.locks.store)
            if not isinstance(error, StoreUnavailable):
                raise
            # The work is done, or has failed, under the lease: that is what is reported.
            logger.warning(
                "%s[%s] could not release its lock %s now: %s",
                self.task.name,
                self.delivery.id,
                lease.name,
                error,
            )
            return lease.held

    def _conflict(self, holder: LockInfo, *, again: bool = True) -> Any:
        task, delivery = self.task, self.delivery
        if delivery.is_by(holder) and delivery.queued:
            put_back(delivery, self.args, self.kwargs, holder.ttl)
        taken = LockNotAcquired(self.name, holder)
        won: Lease | LockInfo | None = None
        try:
            if task.on_conflict == "retry" and delivery.queued:
                with suppress(LockNotAcquired):
                    within = task.lock_retry_for
                    retry_later(delivery, self.args, self.kwargs, within=within, error=taken)
            if task.on_conflict == "coalesce" and delivery.queued and self.followup.wait_for():
                retry_later(delivery, self.args, self.kwargs, longest=FollowUp.LOOK, expires=False)
            if again and task.unique_while is not None and delivery.queued:
                # This message comes to nothing, and until now others may have been told of it.
                give_up(delivery, self.name)
                won = self._contend(0)
        except StoreUnavailable as error:
            return self._outage(error)
        if won is not None:
            return self._won(won) if isinstance(won, Lease) else self._conflict(won, again=False)
        if task.on_conflict in ("raise", "retry"):
            raise taken
        coalesced = task.on_conflict == "coalesce" and delivery.queued
        return self._skip("coalesced" if coalesced else "already_processing", holder.owner.task_id)

    def _skip(self, reason: str, holder: str | None) -> dict[str, Any]:
        if reason == "invalid_state":
            logger.info(
                "skipped %s[%s]: its row is in no state to be worked on, lock %s",
                self.task.name,
                self.delivery.id,
                self.name,
            )
        return {"status": "skipped", "reason": reason, "lock": self.name, "holder": holder}

    def _outage(self, error: StoreUnavailable) -> Any:
        task, delivery = self.task, self.delivery
        if task.on_outage == "run":
            try:
                return self.body(None)
            except NoWork:
                if not self.body.is_claimed():
                    return self._skip("invalid_state", None)
            # Another run has the row, or died with it: only the lock could say.
            if delivery.queued:
                retry_later(delivery, self.args, self.kwargs)
        if task.on_outage == "retry" and delivery.queued:
            retry_later(delivery, self.args, self.kwargs)
        raise error
