"""Ends of a run before its body begins: in a hook, a receiver, a mixin's call, or its arguments.

The header ``early`` of a message says where and how: ``{"at": PLACE, "how": END}``, and at which of
its deliveries: ``"from"`` and ``"to"``, by default at each.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import billiard
from celery.exceptions import Ignore, Reject

from tests.stage import ledger
from tests.stage.scripted import Boom


def kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


def fail(error: Exception) -> NoReturn:
    raise error


DEATHS: dict[str, Callable[[], NoReturn]] = {
    "kill": kill,
    "_exit": lambda: os._exit(9),
    "sys.exit": lambda: sys.exit(3),
}
FAILURES: dict[str, Callable[[], NoReturn]] = {
    "raise": lambda: fail(Boom("before the body")),
    "ignore": lambda: fail(Ignore("before the body")),
    "reject": lambda: fail(Reject("before the body", requeue=False)),
}
ENDS = DEATHS | FAILURES


def pass_by(task: Any, place: str) -> None:
    """Go on, unless the message ends in this place."""
    plan = getattr(task.request, "early", None) or {}
    if plan.get("at") == place:
        task_id = task.request.id
        number = len(ledger.here().entries("prerun", task_id=task_id))
        if plan.get("from", 1) <= number <= plan.get("to", number):
            end(task_id, plan["how"])


def end(task_id: str, how: str) -> NoReturn:
    ledger.write("early", task_id=task_id, how=how)
    ENDS[how]()


class Lethal:
    """An argument that ends the pool child which unpickles it."""

    def __init__(self, task_id: str, how: str) -> None:
        self.task_id, self.how = task_id, how

    def __reduce__(self) -> tuple[Callable[..., Lethal], tuple[str, str]]:
        return unpickled, (self.task_id, self.how)


def unpickled(task_id: str, how: str) -> Lethal:
    """What is made of a pickled `Lethal`, in a process that survives it."""
    if billiard.current_process().daemon:
        end(task_id, how)
    return Lethal(task_id, how)
