"""The guard's row of a run: claimed before the body, finished or left after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from .._engine.lease import Lease
from .._values.words import printable
from ..exceptions import LeaseLost, StatusConflict
from ..guards import NO_LEASE, leave_row
from .message import CameBack, Message, Skip

__all__ = ["Row", "is_own_loss"]

logger = logging.getLogger("django_tasklock")


class Row:
    """The row that the guard of a message's task claims, if it has one."""

    def __init__(self, message: Message) -> None:
        self.message, task = message, message.task
        self.guard: Any = task.guard
        # Whether an earlier run of the message has ended: if the row is done, that run has done it,
        # though others may work on the row again.
        self.ended_before = False
        # Whether the row waits for the task that replaces this one.
        self.replaced = False
        self.fence: int | None = None
        # Whether the row says that this run's result counts.
        self.finished = False
        # What is the same for two runs that work on one row; None without a guard.
        self.key: tuple[Any, ...] | None = None
        if (guard := task.guard) is not None:
            self.pk = guard.pk_of(task.naming.arguments_of(message.args, message.kwargs))
            self.key = guard.model, guard.field, str(self.pk)

    def __str__(self) -> str:
        return printable(f"{self.guard.label} {self.pk}")

    @contextmanager
    def claimed(self, lease: Lease | None) -> Iterator[None]:
        """Claim the row for the block, and finish it. ``lease``: None for a run without the lock.

        Raises `Skip` if the row cannot be claimed, `StatusConflict` if another run has changed it
        meanwhile, and `LeaseLost` if the lease was lost and the row cannot show whether the result
        counts. If the block raises, the row is failed, or open again for the run that is to come.
        """
        guard = self.guard
        if lease is None:
            self._claim(lease)  # If that is interrupted, the row may be that of the lock's holder.
        try:
            if lease is not None:
                self._claim(lease)
            yield
            if self.fence is None and lease is not None:
                # Without a fence the row cannot distinguish this run from the next holder's.
                lease.assert_held()
        except Skip:
            raise
        except BaseException as error:
            self._leave(lease, error)
            raise
        try:
            guard.finish(self.pk, self.fence)
            self.finished = True
        except StatusConflict:
            if self.replaced:
                return  # An eager replacement has finished the row.
            if lease is not None and not lease.detached:
                lease.assert_held()
            raise
        except SoftTimeLimitExceeded as error:
            self._leave(lease, error)  # If the row is done already, it stays so.
            raise

    def is_claimed(self) -> bool:
        """Return whether the row is claimed, by a run that may have died since."""
        return self.key is not None and bool(self.guard.is_claimed(self.pk))

    def refuse(self, fence: int | None) -> None:
        """Mark the row of a call that will not run again as failed, under the lock. ``fence``: of
        the lease. Raises nothing: the job fails all the same."""
        guard = self.guard
        try:
            if guard and not guard.is_done(self.pk) and guard.claim(self.pk, fence):
                guard.fail(self.pk, fence)
        except Exception:
            logger.exception("the row of %s could not be marked as failed", self.message)

    def hand_on(self, *, at_once: bool) -> None:
        """Make the row wait for the task that replaces this one, before that is sent.

        ``at_once``: the replacement runs inside this run, and the row stays claimed.
        """
        self.replaced = True
        if self.guard is not None and not at_once:
            self.guard.reopen(self.pk, self.fence)

    def _claim(self, lease: Lease | None) -> None:
        guard, has_fence = self.guard, self.guard.fence_field
        done = self.ended_before and guard.is_done(self.pk)
        if lease is None:
            self.fence = NO_LEASE if has_fence else None
            claimed = not done and guard.claim_alone(self.pk)
        else:
            self.fence = lease.fence if has_fence else None
            claimed = not done and guard.claim(self.pk, self.fence)
            if not claimed:
                lease.assert_held()  # If it is lost, a redelivery may have the row.
        if not claimed:
            logger.info(
                "skipped %s: its row %s is not in a state to be worked on, lock %s",
                self.message, self, self.message.name,
            )  # fmt: skip
            raise Skip("invalid_state")

    def _leave(self, lease: Lease | None, error: BaseException) -> None:
        guard = self.guard
        if self.replaced and isinstance(error, Ignore | Reject):
            return  # The row waits for the replacement, or the replacement has claimed it.
        if self.fence is None and lease is not None and not lease.held:
            return  # It may be another run's. The next one can claim it as it is.
        # A message that is delivered again must be able to claim its row again.
        again = not isinstance(error, Exception) or isinstance(error, Retry | CameBack)
        again = again or bool(getattr(error, "requeue", False)) or is_own_loss(error, lease)
        leave_row(guard, self.pk, self.fence, again=again)


def is_own_loss(error: BaseException | None, lease: Lease | None) -> bool:
    """Return whether the error says that this very ``lease`` is lost. Other locks, which the body
    itself has taken, do not count."""
    return (
        isinstance(error, LeaseLost)
        and lease is not None
        and error.name == lease.name
        and not lease.held
        and not lease.detached
    )
