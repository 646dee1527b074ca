"""The body of a task's run, with the guard's claim before it and its finish after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from django.db.models import Q

from .._engine.lease import Lease
from ..exceptions import LeaseLost, StatusConflict
from ..guards import NO_LEASE, StatusGuard
from .base import TaskBase
from .claim import Claim, NoWork, Unleased, at_work, has_row_of

__all__ = ["Body"]

logger = logging.getLogger("django_tasklock")


class Body:
    """The body of one call of ``task``, with what the guard does before and after it.

    ``args`` and ``kwargs`` are those of the message. The body is called with ``called``, if another
    class of the task has changed the arguments. ``own``: Celery made the request for this very
    call. ``survives``: the broker keeps the message until the run has ended. ``first``: when the
    first try of the message was sent, in seconds since the epoch, if that is known.
    ``before_retry``: called before a retry is sent.
    """

    def __init__(
        self,
        task: TaskBase,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        survives: bool,
        own: bool = False,
        called: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
        first: float | None = None,
        before_retry: Callable[[], object] = tuple,
    ) -> None:
        self.task = task
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.survives = survives
        self.first = first
        self.completed = False
        """whether the body has returned"""
        self.retried = False
        """whether the body has called ``retry``, or sent the next try itself"""
        self.goes_on = True
        """whether the body goes on when it has sent the next try; not if ``retry`` is to raise"""
        self.ended_before = False
        """whether an earlier run of this message has ended: if the guard's row is done, it has done
        it, though others may work on that row again"""
        self._before_retry = before_retry
        self._own = own
        self._called = called or (args, kwargs)
        self._begun = False
        self._claim: Claim | None = None

    def __call__(self, lease: Lease | None, starting: Callable[[], None] | None = None) -> Any:
        """Claim the row, run the body, finish the row. Returns what the body returns.

        ``lease``: None for a run without the lock. ``starting``: called when the row is claimed,
        before the body runs. Raises `NoWork` if the row cannot be claimed, what the body raises,
        `LeaseLost` if the lease was lost and the row cannot show whether the result counts, and
        `StatusConflict` if another run has changed the row.
        """
        self._begun = True
        guard = self.task.guard
        if guard is None:
            result = self._run(lease, starting)
            if lease is not None and not lease._is_detached():
                lease.assert_held()
            return result
        pk = self._pk(guard)
        if self.ended_before and guard.is_done(pk):
            raise NoWork(f"{guard.label} {pk}")
        fence = lease.fence if lease is not None and guard.fence_field else None
        around = at_work.get()
        try:
            if lease is None:
                fence = NO_LEASE
                self._claim = Claim(guard, pk, fence, None) if guard.claim_alone(pk) else None
            else:
                self._claim_under(Claim(guard, pk, fence, lease))
            if self._claim is None:
                raise NoWork(f"{guard.label} {pk}")
            at_work.set((*around, self._claim))
            result = self._run(lease, starting)
            if fence is None and lease is not None:
                # Without a fence the row cannot distinguish this run from the next holder's.
                lease.assert_held()
        except BaseException as error:
            self._try_to_leave(error)
            raise
        finally:
            at_work.set(around)
        try:
            guard.finish(pk, fence)
        except StatusConflict:
            if self._claim.replaced:
                return result  # An eager replacement has finished the row.
            if lease is not None and not lease._is_detached():
                lease.assert_held()
            raise
        except SoftTimeLimitExceeded as error:
            self._try_to_leave(error)  # If the row is done already, it stays so.
            raise
        return result

    def broke_off(self, error: BaseException, lease: Lease | None) -> bool:
        """Return whether the body stopped because its own ``lease`` is lost, and may start over.

        Other locks, which the body itself has taken, do not count. A lease that the body has handed
        on is not lost, and the run that started over would find it held.
        """
        return not self.completed and self._lost(error, lease)

    @property
    def has_fence(self) -> bool:
        """Whether the row was claimed with a fence."""
        return self._claim is not None and self._claim.fence is not None

    def assert_in_time(self, lease: Lease | Unleased | None) -> None:
        """Raise `LeaseLost` if the ``lease`` is over, so that the run starts over.

        A redelivery may work then. What this run would read does not show that runs have died, or
        that the work is done; and what it would send to go on with its work would come on top.
        """
        if lease is not None and self.survives and not lease._is_detached():
            lease.assert_held()

    def came_late(self, error: BaseException, lease: Lease | None) -> bool:
        """Return whether the body has returned when its own ``lease`` was lost."""
        return self.completed and self._lost(error, lease)

    def failed(self, error: BaseException, lease: Lease | None) -> bool:
        """Return whether the run has ended for good with this ``error`` of its own.

        Not if it never began, or goes on: its message was requeued, retried or replaced, or is
        delivered again because the worker ends. A lock that cooled after that would only be in the
        way of the message that goes on.
        """
        if not self._begun or not isinstance(error, Exception):
            return False
        if isinstance(error, Retry | Ignore | NoWork):
            return False
        if isinstance(error, Reject):
            return not getattr(error, "requeue", False)
        return not self.broke_off(error, lease)

    def was_claimed_under(self, lease: Lease) -> bool:
        """Return whether the guard's row was claimed under this lease, which was handed on since.

        That run's finish must not be taken for this one's, which has the same fence.
        """
        guard = self.task.guard
        if guard is None or not guard.fence_field or lease.fence is None:
            return False
        fence = Q((guard.fence_field, lease.fence))
        return bool(guard.rows().filter(fence, pk=self._pk(guard)).exists())

    def is_covered_by(self, lease: Lease) -> bool:
        """Return whether nothing is to be claimed for a call inside a run that holds the ``lease``:
        there is no guard, or that run has claimed the row."""
        guard = self.task.guard
        return guard is None or has_row_of(lease, guard, lambda: self._pk(guard))

    def is_claimed(self) -> bool:
        """Return whether the guard's row is claimed, by a run that may have died since."""
        guard = self.task.guard
        return guard is not None and guard.is_claimed(self._pk(guard))

    def refuse(self, fence: int | None) -> None:
        """Mark the row of a call that will not run again as failed. Called under the lock.

        ``fence``: that of the lease.
        """
        guard = self.task.guard
        if guard is None:
            return
        pk = self._pk(guard)
        # A run that died may have claimed it under this very lease, or have finished it.
        if not guard.fail(pk, fence) and not guard.is_done(pk) and guard.claim(pk, fence):
            guard.fail(pk, fence)

    def retrying(self, *, goes_on: bool) -> None:
        """Called before a retry is sent. ``goes_on``: the body goes on after that."""
        self.retried, self.goes_on = True, goes_on
        self._before_retry()

    def hand_on(self, *, at_once: bool) -> None:
        """Make the row wait for the task that replaces this one.

        Called before the replacement is sent, since it may start while this run has the row.
        ``at_once``: the replacement runs inside this run, and the row stays claimed.
        """
        if self._claim is None:
            return
        self._claim.replaced = True
        if not at_once:
            self._leave(self._claim, self._claim.guard.reopen)

    def _run(self, lease: Lease | None, starting: Callable[[], None] | None) -> Any:
        if starting is not None:
            starting()
        result = self.task.call_body(
            lease or Unleased(self.name), *self._called, body=self, own=self._own
        )
        self.completed = True
        return result

    def _lost(self, error: BaseException, lease: Lease | None) -> bool:
        return (
            isinstance(error, LeaseLost)
            and lease is not None
            and error.name == lease.name
            and not lease.held
            and not lease._is_detached()
            and self.survives
        )

    def _claim_under(self, claim: Claim) -> None:
        """Claim the row under the lease. If that is interrupted, it may be claimed all the same."""
        self._claim = claim
        try:
            claimed = claim.guard.claim(claim.pk, claim.fence)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            self._claim = None
            raise
        if not claimed:
            self._claim = None

    def _pk(self, guard: StatusGuard) -> Any:
        return guard.pk_of(self.task.arguments_of(self.args, self.kwargs))

    def _try_to_leave(self, error: BaseException) -> None:
        claim = self._claim
        if claim is None:
            return
        try:
            self._ended_badly(claim, error)
        except Exception:
            # The next run can claim the row as it is. The body's own error is reported.
            logger.exception(
                "could not change the row %s of %s after an error", claim.pk, claim.guard.label
            )

    def _ended_badly(self, claim: Claim, error: BaseException) -> None:
        if claim.replaced and isinstance(error, Ignore | Reject):
            return  # The row waits for the replacement, or the replacement has claimed it.
        # A message that is requeued must be able to claim its row again.
        again = not isinstance(error, Exception) or isinstance(error, Retry)
        if isinstance(error, Reject):
            again = bool(getattr(error, "requeue", False))
        elif self.broke_off(error, claim.lease):
            again = True
        self._leave(claim, claim.guard.reopen if again else claim.guard.fail)

    def _leave(self, claim: Claim, leave: Callable[[Any, int | None], bool]) -> None:
        if claim.lease is None or claim.fence is not None or claim.lease.held:
            leave(claim.pk, claim.fence)
        else:
            self.task.leave_row(leave, claim.lease, claim.pk)
