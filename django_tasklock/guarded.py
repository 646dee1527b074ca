"""The database row behind a lock, and the locks before a row."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote

from django.core.exceptions import ValidationError
from django.db.models import Model, Q

from .describe import printable
from .exceptions import InvalidLockConfig
from .guards import StatusGuard
from .lease import LockInfo
from .service import LockService
from .work import CeleryMissing, Work, works

__all__ = ["guarded_row", "label_of", "locks_of", "row_if_known"]

logger = logging.getLogger("django_tasklock")


def guarded_row(info: LockInfo) -> Model | None:
    """The row that the lock's holder works on; None if its task has no guard, or none is found.

    No record tells it. It is the row for which the task would take the very same lock, and
    where its key cannot be read from the name, the one that the lease's fence was written to.
    """
    if info.owner.task is None:
        return None
    for work in works():
        if (work.task, work.store) == (info.owner.task, info.store):
            return _by_name(work, info.name) or _by_fence(work.guard, info.fence)
    return None


def row_if_known(info: LockInfo) -> Model | None:
    """`guarded_row`; None, and a log line, where it cannot be found out.

    The project's code is imported for it, and a database asked: neither may fail a page that
    has more to say of the lock. Raises `CeleryMissing`, which is for the page to say: it is no
    fault of the project's.
    """
    try:
        return guarded_row(info)
    except CeleryMissing:
        raise
    except Exception:
        logger.exception("the row of the lock %s cannot be found out", printable(info.name))
        return None


def label_of(row: Model) -> str:
    """The row's model and key: what may be said of it to anybody who sees its lock."""
    return f"{row._meta.label} {row.pk}"


def locks_of(*rows: Model) -> list[LockInfo]:
    """The locks that are held now and under which a task would work on one of the rows.

    Raises `StoreUnavailable`, `InvalidLockConfig` for the store of a task that works on such
    rows, and what importing the tasks raises.
    """
    names: dict[str, dict[str, None]] = {}
    for work in works():
        for row in rows:
            if _is_of(work.guard, row):
                names.setdefault(work.store, {}).update(dict.fromkeys(work.names_of(row.pk)))
    found: list[LockInfo] = []
    for store, asked in names.items():
        service = LockService(store)
        held = service.store.held(list(asked))
        found += [info for name in asked if name in held and (info := service.get(name))]
    return found


def _is_of(guard: StatusGuard, row: Model) -> bool:
    try:
        model = guard.model
    except InvalidLockConfig:
        return False  # Said by the system checks; and its task cannot run.
    return model._meta.concrete_model is row._meta.concrete_model


def _by_name(work: Work, name: str) -> Model | None:
    key = work.guard.model._meta.pk
    assert key is not None
    for text in _parts(name):
        try:
            pk = key.to_python(text)
        except ValidationError:
            continue
        if name in work.names_of(pk):
            row: Model | None = work.guard.rows().filter(pk=pk).first()
            return row
    return None


def _parts(name: str) -> list[str]:
    """What may be a key in a name: all of it, what stands between colons, each run of digits."""
    parts = [name, *name.split(":"), *re.findall(r"\d+", name)]
    return list(dict.fromkeys([*parts, *map(unquote, parts)]))


def _by_fence(guard: StatusGuard, fence: int | None) -> Model | None:
    if guard.fence_field is None or fence is None:
        return None
    claimed = Q((guard.field, guard.to)) & Q((guard.fence_field, fence))
    row: Model | None = guard.rows().filter(claimed).first()
    return row
