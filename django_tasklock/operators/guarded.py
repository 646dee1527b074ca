"""The database row behind a lock, and the locks before a row."""

from __future__ import annotations

import json
import logging
import re
from typing import Any
from urllib.parse import unquote

from django.core.exceptions import ValidationError
from django.db.models import Model, Q

from .._engine.service import LockService
from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard
from .work import CeleryMissing, Work, works

__all__ = [
    "guarded_row",
    "key_in",
    "key_of",
    "label_of",
    "locks_of",
    "row_if_known",
    "text_of_key",
]

logger = logging.getLogger("django_tasklock")


def guarded_row(info: LockInfo) -> Model | None:
    """Return the row that the lock's holder works on.

    The lease does not record the row. It is the row for which the task would take this lock. If
    the row's key cannot be read from the lock's name, it is the row that has the lease's fence.
    Returns None if the holder's task has no guard, or no row is found. Raises `CeleryMissing`, and
    what importing the tasks and asking the database raise.
    """
    work = _work_of(info)
    return None if work is None else _row_of(work, info)


def row_if_known(info: LockInfo) -> Model | None:
    """Return `guarded_row`, or None with a log line if that raises.

    It imports the project's code and asks a database. A page that shows more than the row must not
    fail for them. Raises `CeleryMissing`, which the page reports: it is not the project's fault.
    """
    try:
        return guarded_row(info)
    except CeleryMissing:
        raise
    except Exception:
        logger.exception("the row of the lock %s cannot be found out", printable(info.name))
        return None


def label_of(row: Model) -> str:
    """Return the row's model and key, which anybody who may see its lock may see."""
    return f"{row._meta.label} {row.pk}"


def locks_of(*rows: Model) -> list[LockInfo]:
    """Return the held locks under which a task would work on one of the ``rows``, without those
    that cool.

    Raises `StoreUnavailable`, `InvalidLockConfig` for the store of a task that works on such
    rows, and what importing the tasks raises.
    """
    names: dict[str, dict[str, None]] = {}
    for work in works():
        for row in rows:
            if _is_of(work.guard, row):
                pk = getattr(row, work.guard.model._meta.pk.attname)
                names.setdefault(work.store, {}).update(dict.fromkeys(work.names_of(pk)))
    found: list[LockInfo] = []
    for store, asked in names.items():
        service = LockService(store)
        held = service.store.held(list(asked))
        found += [
            info
            for name in asked
            # Nobody works under a lock that cools.
            if name in held and (info := service.get(name)) and not info.cooling
        ]
    return found


def _work_of(info: LockInfo) -> Work | None:
    if info.owner.task is None or info.owner.inside:
        return None
    for work in works():
        if (work.task, work.store) == (info.owner.task, info.store):
            return work
    return None


def _row_of(work: Work, info: LockInfo) -> Model | None:
    key = key_in(work, info.name)
    row: Model | None = None if key is None else work.guard.rows().filter(pk=key).first()
    return row or _by_fence(work.guard, info.fence)


def _is_of(guard: StatusGuard, row: Model) -> bool:
    try:
        model = guard.model
    except InvalidLockConfig:
        return False  # The system checks report it; and its task cannot run.
    # A row of a child (multi-table inheritance) is one of its parents' rows too.
    return isinstance(row, model._meta.concrete_model or model)


def key_in(work: Work, name: str) -> Any:
    """Return the key of the row for which the task would take the lock ``name``; None if the name
    does not say."""
    for text in _key_texts(name):
        key = key_of(work.guard, text)
        if key is not None and name in work.names_of(key):
            return key
    return None


def key_of(guard: StatusGuard, text: str) -> Any:
    """Return the row's key that is written so; None if no row can have such a key."""
    field = guard.model._meta.pk
    assert field is not None
    try:
        key = field.to_python(text)
    except (ValidationError, ValueError, TypeError, RecursionError):
        # The text of a key of several columns is a JSON array.
        return None
    return tuple(key) if isinstance(key, list) else key


def text_of_key(key: Any) -> str:
    """Return the text of which `key_of` makes the key again."""
    return json.dumps([*map(str, key)]) if isinstance(key, tuple) else str(key)


def _key_texts(name: str) -> list[str]:
    """What may be a row's key in a name: all of it, parts between colons, all numbers."""
    parts = [name, *name.split(":"), *re.findall(r"\d+", name)]
    return list(dict.fromkeys([*parts, *map(unquote, parts)]))


def _by_fence(guard: StatusGuard, fence: int | None) -> Model | None:
    if guard.fence_field is None or fence is None:
        return None
    claimed = Q((guard.field, guard.to)) & Q((guard.fence_field, fence))
    row: Model | None = guard.rows().filter(claimed).first()
    return row
