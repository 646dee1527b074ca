"""What a call of a task would do about its lock, and of which message it would be a duplicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._values.lock_info import LockInfo
from ..operators.work import Explanation
from ..stores.records import key_of
from .loading import locked_tasks
from .options import OPTIONS
from .task import LockedTask
from .unique import is_same_job


def explain_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain a call of a task. Returns None if there is no such locked task."""
    task = locked_tasks().get(name)
    if task is None:
        return None
    lock_name = type(task).lock_name
    said = getattr(lock_name, "__qualname__", repr(lock_name))
    why = f"the task's lock_name is {said}, with the call's arguments"
    if lock_name is None:
        why = "the task has no lock_name: its own name and a digest of the call's arguments"
    options = {option: getattr(type(task), option) for option in OPTIONS}
    changed = {each: value for each, value in options.items() if value != getattr(LockedTask, each)}
    own = {each: getattr(value, "__name__", value) for each, value in changed.items()}
    names, arguments = task.naming.named(args, kwargs), task.naming.arguments_of(args, kwargs)
    limits = {name: limit.n for name, limit in zip(names.limits, task.lock_limits, strict=True)}
    return Explanation(task, names.name, why, arguments, names.slots, own, names.unique, limits)


def duplicate_of(explanation: Explanation) -> str | LockInfo | None:
    """Return the task id or the lease of which the explained call would be a duplicate now, or
    None. Raises `StoreUnavailable`."""
    task, name = explanation.task, explanation.name
    if task.unique_while is None:
        return None
    store = task.locks.store
    other: str | None = store.get_note(key_of(str(task.name), explanation.unique_name or name))
    if other is not None or task.unique_while != "unfinished":
        return other
    holder: LockInfo | None = store.find(name)
    return holder if holder is not None and is_same_job(task, holder) else None
