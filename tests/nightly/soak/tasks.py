"""The tasks of a soak: one body under locks of many kinds.

``SOAK_PLANT=ignore`` plants a fault: the tasks ``retrying`` and ``waiting`` take another lock than
they say, and work for longer.
"""

from __future__ import annotations

import gc
import itertools
import os
import uuid
from typing import Any

from celery import signals

from django_tasklock import Lease
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from tests.nightly.chaos.history import now
from tests.nightly.soak import TTL_SECONDS
from tests.nightly.soak.app import app
from tests.nightly.soak.book import book, look_after, new_call, version
from tests.stage.models import Job

__all__ = ["GUARDED", "PLAIN", "TASKS"]

GUARD = StatusGuard(
    "stage.Job", pk="row", field="status", source="new", to="processing", done="done",
    failed="failed", fence_field="lock_fence",
)  # fmt: skip
COLLECTING = 7
"""Each so many bodies, a child collects its garbage, as in `tests.nightly.mixed_tasks`: what a
failed call leaves is large, and so few objects that by itself the collector comes late."""
_bodies = itertools.count(1)
PLANTED = os.environ.get("SOAK_PLANT") == "ignore"


def shared(row: int, group: int, seconds: float) -> str:
    return f"shared:{group}" + (f":{uuid.uuid4().hex}" if PLANTED else "")


RETRY: Any = {"on_conflict": "retry", "lock_retry_for": None}
GUARDED: dict[str, dict[str, Any]] = {
    "guarded": {"lock_name": "row:{row}"},
    "retrying": {"lock_name": shared, **RETRY},
    "waiting": {"lock_name": shared, "lock_wait": 4, **RETRY},
    "spaced": {"lock_name": "spaced:{group}", "lock_hold_at_least": 1.0, **RETRY},
}
"""kinds of tasks with a guard, which brings their row from new to done"""
PLAIN: dict[str, dict[str, Any]] = {
    "permits": {"lock_name": "permits", "lock_slots": 2, **RETRY},
    "coalescing": {"lock_name": "coalescing:{group}", "on_conflict": "coalesce"},
    "debounced": {"lock_name": "debounced:{group}", "debounce": 1.0, "debounce_max": 4.0},
}
"""kinds without; `permits` bring a row to done themselves, the others have none"""


@signals.task_prerun.connect(weak=False)
def note_asked(task: Any, **kwargs: Any) -> None:
    """Before the lock is asked for: no lease of this run is older."""
    task.request.asked = now()


def body(task: Any, row: int, group: int, seconds: float) -> str:
    lease: Lease = task.lease
    name, call = lease.name, new_call()
    if PLANTED and name.startswith("shared:"):
        name, seconds = f"shared:{group}", seconds + 1
    book().write("asked", call, name, at=task.request.asked, wait=None, ttl=TTL_SECONDS)
    before = now()
    book().write(
        "granted", call, name, token=lease.token, fence=lease.fence, end=before + lease.remaining,
        row=row, task=task.name, task_id=task.request.id, version=version(),
    )  # fmt: skip

    def end() -> float | None:
        return now() + lease.remaining if lease.held else None

    look_after(call, end, seconds)
    lease.assert_held()
    if row and task.name == "permits":
        # Once: a lost lease may have let another run in, and its permit excludes no other.
        Job._default_manager.filter(pk=row, status="new").update(status="done")
    if next(_bodies) % COLLECTING == 0:
        gc.collect()
    book().write("releasing", call, row=row, finished=True)
    return f"done:{row}"


def declared(name: str, **options: Any) -> Any:
    @app.task(
        bind=True, base=LockedTask, name=name, acks_late=True, lock_ttl=TTL_SECONDS,
        lock_max_attempts=50, **options,
    )  # fmt: skip
    def task(self: Any, row: int, group: int, seconds: float) -> str:
        return body(self, row, group, seconds)

    return task


TASKS: dict[str, Any] = {
    **{name: declared(name, guard=GUARD, **options) for name, options in GUARDED.items()},
    **{name: declared(name, **options) for name, options in PLAIN.items()},
}
