"""The guard's row of a message's run: what retries, replacements and redeliveries mean for it.

A run without the lock has that row alone, and in the place of a lease `Unleased`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry
from django.db import DatabaseError

from .._engine.lease import Lease, Use
from .._values.owner import Owner
from .._values.words import logger
from ..exceptions import LeaseLost, StatusConflict, StoreUnavailable
from ..guards import AWAY, GuardedRow
from .message import Message
from .note import CameBack, RowTaken, Skip
from .requeue import retry_or_raise


class Row(GuardedRow):
    """The row that the guard of a message's task claims, if it has one."""

    def __init__(self, message: Message) -> None:
        self.message, task = message, message.task
        guard: Any = task.guard
        # Whether an earlier run of the message has ended: if the row is done, that run has done it,
        # though others may work on the row again.
        self.ended_before = False
        # Whether the row waits for the task that replaces this one.
        self.replaced = False
        # Whether the body has begun: what fails before it is as if it had not been tried.
        self.begun = False
        # Whether the row says that this run's result counts.
        self.finished = False
        # What is the same for two runs that work on one row; None without a guard.
        self.key: tuple[Any, ...] | None = None
        pk = None
        if guard is not None:
            pk = guard.pk_of(task.naming.arguments_of(message.args, message.kwargs))
            self.key = guard.model, guard.field, str(pk)
        super().__init__(guard, pk, message.id if message.own else None, message)

    def skip(self, lease: Lease | None) -> NoReturn:
        """As `GuardedRow.skip`, and raise `Skip`; or, without the lock, `RowTaken` if another run
        has claimed the row."""
        if lease is None and self.guard.has(self.pk, self.guard.to):
            raise RowTaken
        super().skip(lease)
        raise Skip("invalid_state")

    def claim(self, lease: Lease | None) -> bool:
        """As `GuardedRow.claim`. A redelivery that has the lock also takes what a run of its own
        may have left that had none: without it, its message waits for the lock."""
        message = self.message
        if self.ended_before and self.guard.has(self.pk, self.guard.done):
            return False
        try:
            claimed = super().claim(lease)
            if not claimed and message.reserved:
                message.over()  # A call that was refused may be of a row that was changed since.
                claimed = super().claim(lease)
            again = lease is not None and (message.attempts.again or message.request.retries)
            return claimed or bool(again and self.guard.claim_again(self.pk, self.fence, self.mark))
        except AWAY:
            # Nobody knows whether the row was claimed. Under the lock it can be claimed again.
            message.attempts.again |= lease is None
            raise

    def finish(self, lease: Lease | None) -> None:
        try:
            super().finish(lease)
            self.finished = True
        except (StatusConflict, LeaseLost):
            if not self.replaced:  # An eager replacement has finished the row; or it is open.
                raise
        except DatabaseError as error:
            retry_or_raise(self.message, error)  # Here, so that the row waits for the retry.

    def refuse(self, fence: int | None) -> None:
        """Mark the row of a call that will not run again as failed, under the lock. ``fence``: of
        the lease. Raises nothing: the job fails all the same."""
        guard, pk = self.guard, self.pk
        if guard is None:
            return
        try:
            done = guard.has(pk, guard.done)
            if not done and (guard.claim(pk, fence) or guard.claim_again(pk, fence, self.mark)):
                guard.fail(pk, fence)
        except Exception:
            logger.exception("the row of %s could not be marked as failed", self.message)

    def hand_on(self, *, at_once: bool) -> None:
        """Make the row wait for the task that replaces this one, before that is sent.

        ``at_once``: the replacement runs inside this run, and the row stays claimed.
        """
        self.replaced = True
        if self.guard is not None and not at_once:
            self.guard.reopen(self.pk, self.fence)

    def leave(self, lease: Lease | None, error: BaseException) -> None:
        # After a replacement the row waits for that, or is claimed by it.
        if not (self.replaced and isinstance(error, Ignore | Reject)):
            super().leave(lease, error)

    def comes_again(self, lease: Lease | None, error: BaseException) -> bool:
        again = isinstance(error, Retry | CameBack | Skip) or bool(getattr(error, "requeue", False))
        again |= isinstance(error, StoreUnavailable) and not self.begun
        kept = self.message.late or not self.message.queued
        ends = super().comes_again(lease, error) and kept
        return again or is_own_loss(error, lease) or ends


class Unleased:
    """``self.lease`` of a run without the lock: a `Lease` that holds nothing, and is not lost."""

    token, fence, slot, ttl, remaining = "", None, None, 0.0, 0.0
    held = lasts = renew = detached = False

    def __init__(self, message: Message, use: Use) -> None:
        self.name, self.store = message.name, message.task.lock_store
        self.template, self.owner = message.task.naming.template, Owner.from_record(use.record())

    def assert_held(self) -> None:
        """Do nothing: there is no lease that could be lost."""

    def extend(self, ttl: float | None = None) -> bool:
        """Return False: the lock is not held."""
        return False

    async def aextend(self, ttl: float | None = None) -> bool:
        """Return False: the lock is not held."""
        return False

    release, arelease = extend, aextend

    def detach(self, ttl: float | None = None) -> NoReturn:
        """Raise `LeaseLost`: no other process could go on under it."""
        raise LeaseLost(self.name, "the run is without the lock")


def is_own_loss(error: BaseException | None, lease: Lease | None) -> bool:
    """Return whether the error says that this very ``lease`` is lost. Other locks, which the body
    itself has taken, do not count."""
    if lease is None or not isinstance(error, LeaseLost):
        return False
    return error.name == lease.name and not (lease.held or lease.detached)
