"""The database row behind a lock, the locks before a row, and whether a run could claim it."""

from __future__ import annotations

import json
import logging
import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import unquote

from django.core.exceptions import ValidationError
from django.db import connections, router, transaction
from django.db.models import Model, Q

from .._engine.service import LockService
from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard
from ..stores.base import BaseStore
from .work import Work, works

__all__ = [
    "RowNow",
    "guarded_row",
    "in_savepoint",
    "key_of",
    "label_of",
    "locks_of",
    "next_fence",
    "row_if_known",
    "row_now",
    "text_of_key",
]

logger = logging.getLogger("django_tasklock")


def guarded_row(info: LockInfo) -> tuple[Model, StatusGuard] | None:
    """Return the row that the lock's holder works on, and its guard.

    The lease does not record the row. It is the row for which the task would take this lock. If
    the row's key cannot be read from the lock's name, it is the row that has the lease's fence.
    Returns None if the holder's task has no guard, or no row is found. Raises `CeleryMissing`, and
    what importing the tasks and asking the database raise.
    """
    if info.owner.task is None or info.owner.inside:
        return None
    for work in works():
        if (work.task, work.store) == (info.owner.task, info.store):
            with in_savepoint(work.guard.model):
                row = _row_by_name(work, info.name) or _row_by_fence(work.guard, info.fence)
            return None if row is None else (row, work.guard)
    return None


def row_if_known(info: LockInfo) -> tuple[Model, StatusGuard] | None:
    """Return `guarded_row`, or None with a log line if that raises.

    It imports the project's code and asks a database. A page that shows more than the row must not
    fail for them. Raises `ImportError`, which the page reports: it is not the project's fault.
    """
    try:
        return guarded_row(info)
    except ImportError:
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
    for alias, asked in names.items():
        held = LockService(alias).store.get_many(list(asked))
        # Nobody works under a lock that cools.
        found += [info for info in held if info is not None and not info.cooling]
    return found


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


def in_savepoint(model: type[Model]) -> AbstractContextManager[Any]:
    """Return a block for questions about rows of the model.

    Where a transaction is open, as with ATOMIC_REQUESTS, an error in the block would end it: then
    the block is a savepoint.
    """
    using = router.db_for_read(model)
    return transaction.atomic(using) if connections[using].in_atomic_block else nullcontext()


class RowNow(NamedTuple):
    """A guarded row as it is now.

    ``row`` is its model and key. ``status`` is its status as text, None if the row does not exist.
    ``claimed``: the status is the guard's ``to``. ``refused`` says why a run that holds the lock
    could not claim it, None if it could.
    """

    row: str
    status: str | None
    claimed: bool
    refused: str | None

    def __str__(self) -> str:
        if self.status is None:
            return "does not exist: no run could claim it"
        if self.refused is not None:
            return f"{self.status!r}: no run could claim it: {self.refused}"
        who = "a run that gets the lock" if self.claimed else "a run"
        return f"{self.status!r}: {who} could claim it"


def row_now(guard: StatusGuard, pk: Any, store: BaseStore) -> RowNow:
    """Look at the row ``pk`` of ``guard``, with the questions that a claim's UPDATE asks.

    ``store`` is the one of the task's lock. Raises `InvalidLockConfig`, `StoreUnavailable`, and
    what the database raises, also for a key that the model cannot have.
    """
    label, rows = f"{guard.label} {pk}", guard.rows().filter(pk=pk)
    fields = [guard.field, *([guard.fence_field] if guard.fence_field else [])]
    found = rows.values_list(*fields).first()
    if found is None:
        return RowNow(label, None, False, "does not exist")
    status, *fence = found
    claimed = rows.filter(Q((guard.field, guard.to))).exists()
    refused = None
    if not claimed:
        if not rows.filter(Q((f"{guard.field}__in", guard.source))).exists():
            refused = "not in source"
        elif guard.filter is not None and not rows.filter(guard.filter).exists():
            refused = "filtered out"
        elif guard.exclude is not None and not rows.filter(~guard.exclude).exists():
            refused = "excluded"
    if refused is None and fence and fence[0] is not None:
        following = next_fence(store)
        if following is not None and fence[0] >= following:
            refused = "its fence is larger than any lease's now"
    return RowNow(label, str(status), claimed, refused)


def next_fence(*stores: BaseStore) -> int | None:
    """Return the largest fence that a lease of one of ``stores`` would have now.

    A row with this fence, or a larger one, refuses each of them. None if a store does not say it.
    Raises `StoreUnavailable`.
    """
    following = [store.next_fence() for store in stores]
    known = [fence for fence in following if fence is not None]
    return max(known) if len(known) == len(following) else None


def _is_of(guard: StatusGuard, row: Model) -> bool:
    try:
        model = guard.model
    except InvalidLockConfig:
        return False  # The system checks report it; and its task cannot run.
    # A row of a child (multi-table inheritance) is one of its parents' rows too.
    return isinstance(row, model._meta.concrete_model or model)


def _row_by_name(work: Work, name: str) -> Model | None:
    for text in _key_texts(name):
        key = key_of(work.guard, text)
        if key is not None and name in work.names_of(key):
            row: Model | None = work.guard.rows().filter(pk=key).first()
            return row
    return None


def _key_texts(name: str) -> list[str]:
    """What may be a row's key in a name: all of it, parts between colons, all numbers."""
    parts = [name, *name.split(":"), *re.findall(r"\d+", name)]
    return list(dict.fromkeys([*parts, *map(unquote, parts)]))


def _row_by_fence(guard: StatusGuard, fence: int | None) -> Model | None:
    if guard.fence_field is None or fence is None:
        return None
    claimed = Q((guard.field, guard.to)) & Q((guard.fence_field, fence))
    row: Model | None = guard.rows().filter(claimed).first()
    return row
