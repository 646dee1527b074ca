"""The body of a run, between the guard's claim and its finish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.exceptions import Ignore, Reject, Retry

from ..exceptions import LeaseLost, StatusConflict
from ..guards import StatusGuard
from ..lease import Lease

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["Body", "NoWork", "Unleased"]

logger = logging.getLogger("django_tasklock")


class NoWork(Exception):
    """The guard's row is in no state to be worked on."""


class Claim(NamedTuple):
    """The row that a run has claimed."""

    guard: StatusGuard
    pk: Any
    fence: int | None
    lease: Lease | None


class Unleased:
    """``self.lease`` of a run that goes on without a lock, on the guard alone."""

    token = ""
    fence = None
    held = False
    remaining = 0.0

    def __init__(self, name: str) -> None:
        self.name = name

    def assert_held(self) -> None:
        """There is nothing to lose."""


class Body:
    """The body of one call of ``task``, with what the guard does before and after it.

    ``args`` and ``kwargs`` are those of the message; the body is called with ``called``, which
    another class of the task may have made of them. ``own``: Celery made the request for this
    very call. ``survives`` says whether the message outlives a body that breaks off.
    """

    def __init__(
        self,
        task: LockedTask,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        survives: bool,
        own: bool = False,
        called: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        self.task = task
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.survives = survives
        self.completed = False
        """The body came to its end."""
        self._own = own
        self._called = called or (args, kwargs)
        self._replaced = False
        self._claim: Claim | None = None

    def __call__(self, lease: Lease | None) -> Any:
        """Claim the row, run the body, finish the row; without a lease on the guard alone.

        Raises `NoWork`, what the body raises, `LeaseLost` where nothing but the lease could say
        that the result counts, and `StatusConflict` where the row says that it does not.
        """
        guard = self.task.guard
        if guard is None:
            result = self._run(lease)
            if lease is not None:
                lease.assert_held()
            return result
        pk = self._pk(guard)
        if lease is None:
            claimed, fence = guard.claim_alone(pk)
        else:
            fence = lease.fence if guard.fence_field else None
            claimed = guard.claim(pk, fence)
        if not claimed:
            raise NoWork
        self._claim = Claim(guard, pk, fence, lease)
        try:
            result = self._run(lease)
            if fence is None and lease is not None:
                # Without a fence the row cannot tell us from the next holder.
                lease.assert_held()
        except BaseException as error:
            try:
                self._ended_badly(self._claim, error)
            except Exception:
                # It can be claimed again as it is. What the body raised says what comes next.
                logger.exception("the row %s of %s could not be left", pk, guard.label)
            raise
        try:
            guard.finish(pk, fence)
        except StatusConflict:
            if self._replaced:
                return result  # An eager replacement has finished it.
            if lease is not None:
                lease.assert_held()
            raise
        return result

    def broke_off(self, error: BaseException, lease: Lease | None) -> bool:
        """Whether the body was left because ``lease``, its own, is lost, and may start over.

        Locks that the body has taken for itself are its own affair.
        """
        return (
            isinstance(error, LeaseLost)
            and lease is not None
            and error.name == lease.name
            and not lease.held
            and self.survives
            and not self.completed
        )

    def is_claimed(self) -> bool:
        """Whether the guard's row is being worked on, by a run that lives or did."""
        guard = self.task.guard
        return guard is not None and guard.is_claimed(self._pk(guard))

    def refuse(self, fence: int | None) -> None:
        """Mark the row of a call that is not to be run again as failed, under a lease."""
        guard = self.task.guard
        if guard is None:
            return
        pk = self._pk(guard)
        # It may have been claimed under this very lease, by a run that died.
        if not guard.fail(pk, fence) and guard.claim(pk, fence):
            guard.fail(pk, fence)

    def hand_on(self, *, at_once: bool) -> None:
        """Called before another task is sent in this one's place: the row waits for that one.

        It may start while this run still holds the row. ``at_once``: it runs inside this one.
        """
        self._replaced = True
        if self._claim is not None and not at_once:
            self._leave(self._claim, self._claim.guard.put_back)

    def _run(self, lease: Lease | None) -> Any:
        result = self.task.call_body(
            lease or Unleased(self.name), *self._called, body=self, own=self._own
        )
        self.completed = True
        return result

    def _pk(self, guard: StatusGuard) -> Any:
        return guard.pk_of(self.task.arguments_of(self.args, self.kwargs))

    def _ended_badly(self, claim: Claim, error: BaseException) -> None:
        if self._replaced and isinstance(error, Ignore):
            return  # The row waits for the replacement, or that one has it by now.
        # What goes back to the queue finds its row waiting for work.
        again = not isinstance(error, Exception) or isinstance(error, Retry)
        if isinstance(error, Reject):
            again = bool(getattr(error, "requeue", False))
        elif self.broke_off(error, claim.lease):
            again = True
        self._leave(claim, claim.guard.put_back if again else claim.guard.fail)

    def _leave(self, claim: Claim, leave: Callable[[Any, int | None], bool]) -> None:
        if claim.lease is None or claim.fence is not None or claim.lease.held:
            leave(claim.pk, claim.fence)
        else:
            self.task.leave_row(leave, claim.lease, claim.pk)
