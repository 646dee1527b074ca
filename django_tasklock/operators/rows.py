"""The database row behind a lock, the locks before a row, and whether a run could claim it."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

from django.core.exceptions import ValidationError
from django.db import connections, router, transaction
from django.db.models import Model, Q

from .._values.lock_info import LockInfo
from .._values.words import logger, printable
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard
from ..stores import stores
from ..stores.base import BaseStore
from .held import held_of
from .work import Explanation, Work, tasks

# By so much the clocks of the store and of this host may differ.
CLOCKS_DIFFER_SECONDS = 60.0


def row_if_known(info: LockInfo) -> tuple[Model, StatusGuard] | None:
    """Return the row that the lock's holder works on, and its guard.

    The lease does not record the row. It is the row for which the task would take this lock. If
    the row's key cannot be read from the lock's name, it is the row that has the lease's fence.
    Returns None if the holder's task has no guard, no row is found, or the tasks cannot be imported
    here, which the doctor reports; and with a log line if the project's code or the database fails:
    a page that shows more than the row must not fail for them.
    """
    if info.owner.task is None or info.owner.inside:
        return None
    try:
        for work in tasks().guarded_tasks():
            if (work.task, work.store) == (info.owner.task, info.store):
                with in_savepoint(work.guard.model):
                    row = _row_by_name(work, info.name) or _row_by_fence(work.guard, info.fence)
                return None if row is None else (row, work.guard)
    except ImportError:
        pass  # A site may have the locks of tasks that it does not have.
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
    rows, and what `tasks` raises.
    """
    held = held_of(
        (work.store, name)
        for work in tasks().guarded_tasks()
        for row in rows
        if _is_of(work.guard, row)
        for name in work.names_of(getattr(row, work.guard.model._meta.pk.attname))
    )
    # Nobody works under a lock that cools.
    return [info for info in held.values() if not info.cooling]


def in_savepoint(model: type[Model]) -> AbstractContextManager[Any]:
    """Return a block for questions about rows of the model.

    Where a transaction is open, as with ATOMIC_REQUESTS, an error in the block would end it: then
    the block is a savepoint.
    """
    using = router.db_for_write(model)
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
        return f"{self.status!r}: a run that gets the lock could claim it"


def row_of(explanation: Explanation) -> RowNow | str | None:
    """Return the row that the call would claim as it is now; None for a task without a guard.

    A text if that cannot be found out: the model can have no such key, the database or the store
    failed, or the guard is wrong. The rest of the explanation is true without it.
    """
    task, guard = explanation.task, explanation.task.guard
    if guard is None:
        return None
    try:
        return _row_now(guard, guard.pk_of(explanation.arguments), stores[task.lock_store])
    except ValidationError as error:
        return f"not known: {' '.join(error.messages)}"
    except Exception as error:
        return f"not known: {error}"


def _row_now(guard: StatusGuard, pk: Any, store: BaseStore) -> RowNow:
    """Look at the row ``pk`` of ``guard``, with the questions that a claim's UPDATE asks.

    ``store`` is the one of the task's lock. Raises `InvalidLockConfig`, `StoreUnavailable`, and
    what the database raises, also for a key that the model cannot have.
    """
    label, rows = f"{guard.label} {pk}", guard.rows().filter(pk=pk)
    found = rows.values_list(guard.field, guard.fence_field or "pk").first()
    if found is None:
        return RowNow(label, None, False, "does not exist")
    status, fence = found if guard.fence_field else (found[0], None)
    claimed = rows.filter(Q((guard.field, guard.to))).exists()
    refused = None
    if claimed and (fence or 0) < 0 and store.supports_fence:
        refused = "a run without the lock has claimed it"
    elif not claimed:
        if not rows.filter(Q((f"{guard.field}__in", guard.source))).exists():
            refused = "not in source"
        elif guard.filter is not None and not rows.filter(guard.filter).exists():
            refused = "filtered out"
        elif guard.exclude is not None and not rows.filter(~guard.exclude).exists():
            refused = "excluded"
    if refused is None and refuses_all(fence, store):
        refused = "its fence is larger than any lease's now"
    return RowNow(label, str(status), claimed, refused)


def refuses_all(fence: int | None, store: BaseStore) -> bool:
    """Return whether a row with this fence refuses every lease that the store would grant now."""
    largest = (time.time() + CLOCKS_DIFFER_SECONDS) * 1_000_000
    return store.fences_are_times and (fence or 0) > largest


def _is_of(guard: StatusGuard, row: Model) -> bool:
    with suppress(InvalidLockConfig):  # The system checks report it; and its task cannot run.
        # A row of a child (multi-table inheritance) is one of its parents' rows too.
        return isinstance(row, guard.model._meta.concrete_model or guard.model)
    return False


def _row_by_name(work: Work, name: str) -> Model | None:
    field: Any = work.guard.model._meta.pk
    # What may be a row's key in a name: all of it, parts between colons, all numbers.
    parts = [name, *name.split(":"), *re.findall(r"\d+", name)]
    for text in dict.fromkeys([*parts, *map(unquote, parts)]):
        # No row can have such a key.
        with suppress(ValidationError, ValueError, TypeError):
            if name in work.names_of(key := field.to_python(text)):
                row: Model | None = work.guard.rows().filter(pk=key).first()
                return row
    return None


def _row_by_fence(guard: StatusGuard, fence: int | None) -> Model | None:
    if guard.fence_field is None or fence is None:
        return None
    claimed = Q((guard.field, guard.to)) & Q((guard.fence_field, fence))
    row: Model | None = guard.rows().filter(claimed).first()
    return row
