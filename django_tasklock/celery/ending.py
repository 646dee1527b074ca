"""What a message has reserved ends with it, also if its run is never reached.

Another class of the task may raise in its `__call__` or `before_start`, or return without the next
class's call, and an option may be a function that fails. `Run` sees none of that, and ends what the
messages that reach it have reserved.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from celery import states
from celery.exceptions import Retry
from celery.signals import task_postrun

from ..exceptions import StoreUnavailable
from ..operators.reservations import key_of
from .base import TaskBase
from .delivery import Delivery
from .followup import FollowUp, follow_up_key
from .unique import Reservation, give_up, unique_for

__all__ = [
    "end_relied_on",
    "end_reservation",
    "is_of_hook",
    "is_relied_on",
    "may_reserve",
    "reached",
]


def reached(delivery: Delivery) -> None:
    """Note on the request that its message has reached its run, which ends what it reserved."""
    if delivery.own:
        request: Any = delivery.request
        request.tasklock_reached = True


def is_of_hook(request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call with these arguments is one that a hook of the task makes after the
    message's run, such as ``on_success``: the request there is still that of the message."""
    attributes = request.__dict__
    if "tasklock_lease" in attributes or not attributes.get("tasklock_reached"):
        return False
    return [*args] != [*(request.args or ())] or dict(kwargs) != dict(request.kwargs or {})


def end_relied_on(delivery: Delivery, name: str, followup: FollowUp) -> None:
    """End what makes later calls rely on this message, as soon as the store answers."""
    followup.give_up()
    end_reservation(delivery, name)


def end_reservation(delivery: Delivery, name: str) -> None:
    """End the reservation of a message that has ended, as soon as the store answers."""
    try:
        give_up(delivery, name)
    except StoreUnavailable:
        task = delivery.task
        seconds = unique_for(task, delivery.request.headers)
        Reservation(task, name, delivery.id).give_up_soon(seconds)


def is_relied_on(delivery: Delivery, name: str) -> bool:
    """Return whether later calls may have been refused or skipped because of this very message, and
    rely on a run that starts after them. Raises `StoreUnavailable`."""
    task = delivery.task
    keys = []
    if task.unique_while is not None:
        keys.append(key_of(task.name, name))
    if task.on_conflict == "coalesce":
        keys.append(follow_up_key(task, name))
    return any(task.locks.store.get_note(key) == delivery.id for key in keys)


def may_reserve(task: TaskBase) -> bool:
    """Whether later calls may be refused or skipped because a message of this task waits."""
    return task.unique_while is not None or task.on_conflict == "coalesce"


@task_postrun.connect
def _ended(sender: Any, retval: Any = None, state: str | None = None, **_: Any) -> None:
    if not isinstance(sender, TaskBase):
        return
    if sender.request.__dict__.pop("tasklock_reached", False) or not may_reserve(sender):
        return
    delivery = Delivery(sender)
    # `Ignore` of another class: only ours means that the message was sent again.
    over = state in (states.SUCCESS, states.IGNORED)
    # Celery gives no state to what is no `Exception`, such as `SystemExit`, nor if the result
    # backend fails. It sends this signal while that is raised.
    error = sys.exc_info()[1] if state is None else retval
    if isinstance(error, Exception) and isinstance(error.__context__, Retry):
        error = error.__context__  # The retry was sent, and then not recorded.
    if not delivery.queued or not (over or error is None or not delivery.comes_back(error)):
        return
    try:
        name = sender.lock_name_of(delivery.request.args or (), delivery.request.kwargs or {})
    except Exception:
        return  # The run has failed of it. The result backend shows that it has ended.
    end_relied_on(delivery, name, FollowUp(delivery, name))
