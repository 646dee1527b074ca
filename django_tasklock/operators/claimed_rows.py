"""The claimed rows behind many locks, with few questions to the database."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Model, Q

from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..guards import StatusGuard
from .guarded import key_in
from .savepoint import in_savepoint
from .work import Work, works

__all__ = ["claimed_rows"]

logger = logging.getLogger("django_tasklock")


def claimed_rows(infos: Sequence[LockInfo]) -> dict[str, tuple[Model, Any]]:
    """Return `guarded_row` and its status for each of some locks of one store, by the lock's name.

    Only rows in their guard's ``to``. Without those that cannot be found out because the database
    or the project's code fails, with a log line. None at all if the tasks cannot be imported, of
    which the doctor tells by itself.
    """
    by_task: dict[str, list[LockInfo]] = {}
    for info in infos:
        if info.owner.task is not None and not info.owner.inside:
            by_task.setdefault(info.owner.task, []).append(info)
    if not by_task:
        return {}
    try:
        guarded = {(work.task, work.store): work for work in works()}
    except ImportError:
        return {}
    found: dict[str, tuple[Model, Any]] = {}
    for task, some in by_task.items():
        work = guarded.get((task, some[0].store))
        if work is not None:
            try:
                with in_savepoint(work.guard.model):
                    found.update((name, (row, work.guard.to)) for name, row in _claimed(work, some))
            except Exception:
                names = (printable(some[0].name), len(some) - 1)
                logger.exception(
                    "the row of the lock %s, and of %d others, cannot be found out", *names
                )
    return found


def _claimed(work: Work, infos: Sequence[LockInfo]) -> Iterable[tuple[str, Model]]:
    keys = {info.name: key for info in infos if (key := key_in(work, info.name)) is not None}
    rows = rows_with(work.guard, Q(pk__in=list(dict.fromkeys(keys.values()))))
    claimed = rows_with(work.guard, Q(pk__in=list(rows)) & Q((work.guard.field, work.guard.to)))
    by_fence = _by_fence(work.guard, [info for info in infos if keys.get(info.name) not in rows])
    for info in infos:
        key = keys.get(info.name)
        row = claimed.get(key) if key in rows else by_fence.get(info.fence)
        if row is not None:
            yield info.name, row


def rows_with(guard: StatusGuard, condition: Q) -> dict[Any, Model]:
    """Return the guard's rows for which the condition is true, by their keys."""
    return {row.pk: row for row in guard.rows().filter(condition)}


def _by_fence(guard: StatusGuard, infos: Sequence[LockInfo]) -> dict[int | None, Model]:
    fences = {info.fence for info in infos} - {None}
    field = guard.fence_field
    if field is None or not fences:
        return {}
    condition = Q((guard.field, guard.to)) & Q((f"{field}__in", fences))
    return {getattr(row, field): row for row in rows_with(guard, condition).values()}
