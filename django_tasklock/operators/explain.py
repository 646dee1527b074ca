"""The lock that a call of a task would take, and what it would meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError

from .._values.lock_info import LockInfo
from ..stores import stores
from .rows import RowNow, row_now
from .work import Explanation, tasks

__all__ = ["Explanation", "duplicate_of", "explain", "row_of"]


def explain(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain the call of ``task`` with ``args`` and ``kwargs``; None if no such task takes a lock.

    The modules that define tasks are imported first. Raises `TypeError` where the arguments
    do not fit the task, `ValueError` where no name can be made of them, and `ImportError`.
    """
    return tasks().explain_call(task, args, kwargs)


def duplicate_of(explanation: Explanation) -> str | LockInfo | None:
    """Return what the call would be a duplicate of now, or None if it would be sent.

    That is the task id of a message in the queue, or the lease of a run. Raises `StoreUnavailable`.
    """
    return tasks().duplicate_of(explanation)


def row_of(explanation: Explanation) -> RowNow | str | None:
    """Return the row that the call would claim as it is now; None for a task without a guard.

    A text if that cannot be found out: the model can have no such key, the database or the store
    failed, or the guard is wrong. The rest of the explanation is true without it.
    """
    if explanation.claims is None:
        return None
    try:
        return row_now(*explanation.claims, stores[explanation.store])
    except ValidationError as error:
        return f"not known: {' '.join(error.messages)}"
    except Exception as error:
        return f"not known: {error}"
