"""How a run gets its lock, and whether it is still needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery.exceptions import Ignore

from .._engine.lease import Lease
from .._engine.use import Use
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from .base import TaskBase
from .calling import Call
from .delivery import Delivery, Verdict
from .ending import end_relied_on, end_reservation, is_relied_on
from .handing import adopted
from .locked_run import BESIDE_TEMPLATE, LockedRun

__all__ = ["Taking", "as_it_is"]

REDELIVERY_WAIT_SECONDS = 1.0
"""how long a redelivery waits for the lock: the first run of its message may just be ending"""


class Taking:
    """The part of `Run` that takes the lock."""

    def __init__(
        self,
        task: TaskBase,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Call | None = None,
    ) -> None:
        self.task = task
        self.delivery = delivery = Delivery(task)
        self.called = args, kwargs
        if delivery.own:
            # Another class of the task may have changed the arguments of the message.
            args, kwargs = delivery.request.args or (), delivery.request.kwargs or {}
        elif call is not None:
            args, kwargs = call.args, call.kwargs
        if delivery.survives:
            # The run may start over, with what the message says and not what the body made of it.
            args, kwargs = as_it_is(args), as_it_is(kwargs)
        self.args = args
        self.kwargs = kwargs
        self.name: str = task.lock_name_of(args, kwargs)
        self.slots = task.lock_slots_of(args, kwargs)
        self.locked = LockedRun(delivery, self.name, args, kwargs, self.called)
        self.use = Use(None)

    def _take(self) -> Lease | LockInfo:
        """Adopt the lease that the message brings, or acquire. Returns the lease, or the holder.

        Raises what `LockedRun.carry_out` raises, and `StoreUnavailable`: the lock is released then.
        """
        delivery = self.delivery
        try:
            self.use.template = self.task.name_template
            looked = delivery.redelivered and self.task.lock_wait == 0
            won = adopted(
                delivery, self.name, self.use, self.locked.body, slots=self.slots
            ) or self._acquire(self.task.lock_wait)
            if not isinstance(won, Lease) and _may_end_soon(delivery, won):
                looked, won = False, self._acquire(REDELIVERY_WAIT_SECONDS)
            if isinstance(won, Lease) and delivery.redelivered and not looked:
                won = self._look_again(won)
            return won
        except StoreUnavailable:
            if self.use.lease is not None:
                self.use.leave(failed=True)
            raise

    def _carry_out_verdict(self) -> Verdict:
        try:
            verdict = self.delivery.judge()
            self.locked.carry_out(verdict)
        except Ignore:
            end_reservation(self.delivery, self.name)
            raise
        return verdict

    def _look_again(self, lease: Lease) -> Lease | LockInfo:
        """Give ``lease`` back if a run of this message has ended since the last look at the notes.

        Whether its result is stored may take long to find out. Under the lock that would turn other
        calls away, for a run that only finds out that it is not needed. Raises `StoreUnavailable`.
        """
        if not self.delivery.has_ended():
            return lease
        lease.release()
        self._carry_out_verdict()
        return self._acquire(0)

    def _end_relied_on(self) -> None:
        end_relied_on(self.delivery, self.name, self.locked.followup)

    def _acquire(
        self, wait: float | None, name: str = "", *, renew: bool | None = None
    ) -> Lease | LockInfo:
        task, delivery = self.task, self.delivery
        if task.cooling_times is not None:
            task.cooling_times.check(task.locks.store)
        self.use.template = BESIDE_TEMPLATE if name else task.name_template
        try:
            won = task.locks.try_acquire(
                name or self.name,
                ttl=task.lock_ttl,
                wait=wait,
                renew=task.lock_renew if renew is None else renew,
                task=task.name,
                task_id=delivery.id,
                token=delivery.token,
                note=delivery.note_of_start(),
                use=self.use,
                slots=1 if name else self.slots,
            )
            if isinstance(won, Lease):
                kept = self.use.note_kept
                delivery.started(kept=kept, needed=kept and is_relied_on(delivery, self.name))
            return won
        except BaseException as error:
            if not isinstance(error, Exception):
                delivery.interrupted()
            raise


def _may_end_soon(delivery: Delivery, holder: LockInfo) -> bool:
    """Whether the holder may be a run of the same message, or a redelivery that only checks."""
    return (delivery.redelivered or delivery.is_by(holder)) and not holder.cooling


def as_it_is(arguments: Any) -> Any:
    """Return the arguments of a message with copies of the lists and dicts in them."""
    try:
        return _copied(arguments)
    except RecursionError:  # A list of a pickle may be in itself.
        return arguments


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value
