"""The part of a run that holds the lock: is it still needed, the body, the release."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from celery.exceptions import Ignore, Retry

from .._compat.celery import leaves_by_itself
from .._engine.cooling import Cooling
from .._engine.lease import Lease
from .._engine.names import make_name
from .._engine.renewal import renewal
from .._values import clock
from ..exceptions import StoreUnavailable, TooManyAttempts
from ..stores.base import Note
from .body import Body
from .claim import NoWork
from .debounce import begin
from .delivery import Delivery, Verdict
from .earlier_retry import EarlierRetry
from .exiting import running
from .followup import FollowUp
from .late import LateRun
from .requeue import requeue_redelivery
from .skipping import Skipping
from .stored_result import count_part, restore_success
from .unique import give_up, reserve_again

__all__ = ["BESIDE_TEMPLATE", "LockedRun", "VerdictUnknown", "beside_name", "held_leases"]

logger = logging.getLogger("django_tasklock")

held_leases: ContextVar[tuple[Lease, ...]] = ContextVar("tasklock_held", default=())
"""the leases of this run and of the runs around it, the innermost last"""


BESIDE_TEMPLATE = "beside:{task_id}"


def beside_name(task_id: Any) -> str:
    """Return the name under which the message ``task_id`` runs beside its lock's holder.

    With ``on_conflict="run"``. The lease shows redeliveries of the message that it runs.
    """
    return make_name("beside", str(task_id))


class VerdictUnknown(Exception):
    """The store could not say under the lock whether the run is still needed."""

    def __init__(self, error: StoreUnavailable) -> None:
        super().__init__(error)
        self.error = error


class LockedRun(Skipping):
    """What one call of a task does under the lock ``name``.

    ``args`` and ``kwargs`` are those of the message, and name the lock and the guard's row. The
    body is called with ``called``: other classes of the task may have changed the arguments.
    """

    cools = True
    """whether the task's options keep the lock taken after the run"""

    def __init__(
        self,
        delivery: Delivery,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        called: tuple[Sequence[Any], Mapping[str, Any]],
    ) -> None:
        super().__init__(delivery, name)
        self.args = args
        self.kwargs = kwargs
        self._earlier_retry = EarlierRetry(delivery, name)
        self.body = Body(
            delivery.task, name, args, kwargs,
            survives=delivery.survives, own=delivery.own, called=called, first=delivery.first,
            before_retry=self._earlier_retry.need,
        )  # fmt: skip

    @cached_property
    def followup(self) -> FollowUp:
        """The follow-up run of this lock, as this message sees it."""
        return FollowUp(self.delivery, self.name)

    @property
    def _late(self) -> LateRun:
        return LateRun(self.delivery, self.args, self.kwargs)

    def __call__(self, lease: Lease) -> Any:
        """Run under ``lease`` and release it. Returns the task's result or a skip marker.

        Raises what the body raises, what `carry_out` raises, `LeaseLost` where the result does
        not count, and `VerdictUnknown` before the body has started.
        """
        around = held_leases.get()
        try:
            running[lease] = self.delivery
            held_leases.set((*around, lease))
            return self._run_and_release(lease)
        finally:
            held_leases.set(around)
            running.pop(lease, None)

    def carry_out(self, verdict: Verdict) -> None:
        """Do what the verdict says. Returns if it says "run".

        Raises `Ignore` for a dropped or requeued message, what else `requeue_redelivery` raises,
        and `TooManyAttempts`.
        """
        if verdict.action == "run":
            return
        task, delivery = self.task, self.delivery
        if verdict.action == "drop":
            logger.info(
                "dropped a redelivery of %s[%s]: %s", task.name, delivery.id, verdict.reason
            )
            self._tell("dropped", "redelivery")
            restore_success(task, delivery.stored_before)
            count_part(task)
            raise Ignore(f"dropped a redelivery: {verdict.reason}")
        if verdict.action == "requeue":
            requeue_redelivery(delivery, self.args, self.kwargs, verdict.delay)
        if verdict.action == "fail":
            self._tell("given_up", "too_many_attempts")
            raise TooManyAttempts(str(task.name), delivery.id, verdict.starts)

    def release(self, lease: Lease, note: Note | None) -> bool:
        """Release the lease, and write the note. Returns False if the lease was lost before."""
        held = lease.held
        try:
            if lease._is_detached():
                # The body has handed it on.
                if note is not None:
                    self.write(note)
                return True
            return lease.release(note)
        except StoreUnavailable as error:
            # The body has ended under the lease: its result or its error is what is reported.
            logger.warning(
                "%s[%s] could not release its lock %s now: %s",
                self.task.name, self.delivery.id, lease.name, error,
            )  # fmt: skip
            return lease._is_detached() or (held and clock.now() < lease._deadline)

    def write(self, note: Note) -> None:
        """Write a note; that of an end as soon as the store answers. Raises `StoreUnavailable` if
        it does not answer now."""
        store = self.task.locks.store
        try:
            store.set_note(note)
        except StoreUnavailable:
            if note.text:
                renewal.owe(self.name, note, note.ttl, store)
            raise

    def _run_and_release(self, lease: Lease) -> Any:
        delivery, note, died, broke_off, late = self.delivery, None, False, False, None
        times = self.task.cooling_times if self.cools else None
        cooling = None if times is None else Cooling(times)
        try:
            result = self.start(lease)
            if result is None:
                try:
                    result = self.work(lease)
                except (Retry, Ignore):
                    # A message that this run sent continues its work (`Task.retry`, `replace`).
                    note = delivery.note_of_end(goes_on=True)
                    raise
            note = delivery.note_of_end()
            if self.body.completed and not self.body.retried and lease.held:
                self._earlier_retry.drop(self.write)
            if cooling is not None and self.body.completed:
                cooling.ended(failed=False)
                lease._cooling = cooling
        except VerdictUnknown:
            raise
        except BaseException as error:
            died = leaves_by_itself(error)
            broke_off = self.body.broke_off(error, lease)
            if cooling is not None and self.body.failed(error, lease):
                cooling.ended(failed=True)
                lease._cooling = cooling
            if not broke_off and not delivery.comes_back(error):
                # Under the lock: a message that waits for it would take this run for its own.
                self.followup.give_up()
            if not broke_off:
                reserve_again(delivery, self.name, lease, error)
                if not self.body.came_late(error, lease):
                    raise
                late = error
        finally:
            if note is None and not died:
                note = delivery.note_of_interruption()
            released = self.release(lease, note)
            if not released:
                self._earlier_retry.undo_drop()
        if broke_off or (late is not None and self.body.has_fence):
            # With a fence a later run has claimed the row. If it is gone, the work is left.
            self._late.start_over(lease)
        if late is not None:
            self._late.leave_to_redelivery(lease)
            raise late
        if not released and self.task.guard is None:
            # Without a guard only the lease shows that this run's result counts.
            self._late.leave_to_redelivery(lease)
            lease.assert_held()
        return result

    def start(self, lease: Lease | None) -> dict[str, Any] | None:
        """Decide whether the body is to run. Returns a skip marker if it is not.

        Raises what `carry_out` raises, and `VerdictUnknown`.
        """
        delivery = self.delivery
        try:
            try:
                self._leave_to_other_run()
                self.body.assert_in_time(lease)
                verdict = delivery.judge_start()
                if verdict.action == "fail":
                    self.body.assert_in_time(lease)
                self.carry_out(verdict)
                self.body.ended_before = verdict.ended
            except BaseException:
                # The reservation ends with a message that does not run as well.
                with suppress(StoreUnavailable):
                    give_up(delivery, self.name)
                raise
            # Before the body reads anything: a call that is refused from now on would be lost.
            give_up(delivery, self.name)
            later = begin(delivery, self.name, again=verdict.starts > 0)
            if later is not None:
                return self.skip_replaced(later)
            if delivery.queued and self.task.on_conflict == "coalesce":
                return None if self.followup.begin() else self.skip("coalesced", None)
        except StoreUnavailable as error:
            raise VerdictUnknown(error) from error
        except TooManyAttempts:
            try:
                self.refuse(lease)
            except Exception:
                # For example a database that does not answer: the job fails all the same.
                logger.exception("the row of %s could not be marked as failed", self.name)
            raise
        return None

    def refuse(self, lease: Lease | None) -> None:
        """Mark the guard's row of a call that will not run again as failed."""
        assert lease is not None
        self.body.refuse(lease.fence)

    def work(self, lease: Lease | None) -> Any:
        """Run the body. Returns its result, or a skip marker."""
        try:
            return self.body(lease)
        except NoWork as error:
            self.body.assert_in_time(lease)
            return self.skip_row(error.row)

    def lock_of_other_run(self) -> str | None:
        """The name of the lock that another run of this very message would hold, if not this."""
        runs_beside = self.task.on_conflict == "run" and self.delivery.survives
        return beside_name(self.delivery.id) if runs_beside else None

    def _leave_to_other_run(self) -> None:
        """Requeue the message if another delivery of it runs, with a lease of another name."""
        name = self.lock_of_other_run()
        if name is not None:
            self._late.leave_to(self.task.locks.get(name))
