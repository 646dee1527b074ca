"""The original arguments of a direct call, if another class's `__call__` changes them.

A message keeps its arguments. In a direct call, `LockedTask.__call__` sees only what other classes
made of them, and would take another lock than the same job takes from the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple

__all__ = ["Call", "called", "note_calls"]


class Call(NamedTuple):
    """A call of ``task`` that has not reached `LockedTask.__call__` yet."""

    task: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


called: ContextVar[Call | None] = ContextVar("tasklock_called", default=None)


def note_calls(cls: Any, ours: Callable[..., Any]) -> None:
    """Wrap ``cls.__call__``, unless it is ``ours``, so that `called` has each call's arguments."""
    call = cls.__call__
    if call is ours or getattr(call, "tasklock_notes", False):
        return

    @wraps(call)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = called.get()
        if outer is not None and outer.task is self:
            return call(self, *args, **kwargs)  # Called by super(): it is noted already.
        mark = called.set(Call(self, args, kwargs))
        try:
            return call(self, *args, **kwargs)
        finally:
            called.reset(mark)

    noting.tasklock_notes = True  # type: ignore[attr-defined]
    cls.__call__ = noting
