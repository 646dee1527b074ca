"""Many ways to lock a task, and as many calls of them as a test wants: it looks at what they leave.

A worker of the stage imports this, and so does who sends the calls.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from celery import signals

from django_tasklock import lock
from django_tasklock.celery import LockedTask, limit
from django_tasklock.guards import StatusGuard
from tests.stage.app import app
from tests.stage.scripted import Boom

IN_A_ROW = 4
"""calls of one task under one name: some run at once, and the others are in the queue then"""
FAILING = 9
"""Each so many calls, one fails."""
COLLECTING = 7
"""Each so many calls, a child collects its garbage, such as the frames of a call that failed: it is
large, and so few objects that by itself the collector comes late. It is not what stays."""
GUARD = StatusGuard(
    "stage.Job", pk="number", field="status", source=["new", "done", "failed"], to="running",
    done="done", failed="failed", fence_field="lock_fence",
)  # fmt: skip
LATE: Any = {"acks_late": True}
# What is requeued comes back soon, and no run waits for another test's patience.
RETRY: Any = {"on_conflict": "retry", "lock_retry_for": 60}
OPTIONS: dict[str, dict[str, Any]] = {
    "early": {},
    "late": LATE,
    "guarded": {"guard": GUARD, **LATE},
    "guarded early": {"guard": GUARD},
    "raise": {"on_conflict": "raise", **LATE},
    "retry": {**RETRY, **LATE},
    "retry early": RETRY,
    "wait": {"lock_wait": 10, **LATE},
    "coalesce": {"on_conflict": "coalesce", **LATE},
    "join": {"on_conflict": "join", **LATE},
    "replace": {"on_conflict": "replace", "lock_max_attempts": 1000, **LATE},
    "queued": {"unique_while": "queued", **RETRY, **LATE},
    "unfinished": {"unique_while": "unfinished", **LATE},
    "debounce": {"debounce": 0.2, "debounce_max": 0.5},
    "slots": {"lock_slots": 2, **RETRY, **LATE},
    "limits": {"lock_limits": [limit("partner", 2), limit("tenant:{number}", 1)], **LATE},
    "cooldown": {"lock_cooldown": 0.05, "lock_cooldown_after_error": 0.02, **RETRY},
    "beside": {"on_conflict": "run", **LATE},
}


@signals.worker_process_init.connect(weak=False)
def freeze(**kwargs: Any) -> None:
    """Have the garbage collector look at nothing that a child was born with."""
    gc.freeze()


def body(number: int, call: int) -> int:
    """Short; some calls fail."""
    if call % COLLECTING == 0:
        gc.collect()
    time.sleep(0.001)
    if call % FAILING == 0:
        raise Boom("one of many")
    return number


def in_a_block(number: int, call: int) -> int:
    with lock(f"block:{number}", wait=5):
        return body(number, call)


def task(name: str, run: Callable[[int, int], int] = body, **options: Any) -> Any:
    register: Any = app.task(name=f"mixed {name}", **options)
    return register(run)


LOCKED = {
    name: task(
        name, base=LockedTask, lock_name=f"{name.replace(' ', '-')}:{{number}}", lock_ttl=60,
        **options,
    )
    for name, options in OPTIONS.items()
}  # fmt: skip
LOCKED["block"] = task("block", in_a_block)
PLAIN = {"plain": task("plain", acks_late=True)}


def send(tasks: dict[str, Any], rows: int, first: int, calls: int) -> None:
    """Send so many calls, evenly of these tasks and rows; ``first``: how many were sent before."""
    in_turn = list(tasks.values())
    for call in range(first, first + calls):
        row = call // IN_A_ROW
        in_turn[row % len(in_turn)].delay(row % rows + 1, call)
