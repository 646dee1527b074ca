"""With which arguments a locked task was called, where another class's `__call__` comes first.

A message has its arguments. A direct call has none: what another class makes of them is all that
`LockedTask.__call__` sees, and the lock's name would not be that of the same job in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple

__all__ = ["Call", "called", "note_calls"]


class Call(NamedTuple):
    """A call of ``task`` that has not come to `LockedTask.__call__` yet."""

    task: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


called: ContextVar[Call | None] = ContextVar("tasklock_called", default=None)


def note_calls(cls: Any, ours: Callable[..., Any]) -> None:
    """Note each call's arguments before any class's `__call__` sees them, if ``ours`` is not the
    first of these."""
    call = cls.__call__
    if call is ours or getattr(call, "tasklock_notes", False):
        return

    @wraps(call)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = called.get()
        if outer is not None and outer.task is self:
            return call(self, *args, **kwargs)  # Reached by super(): it is noted.
        mark = called.set(Call(self, args, kwargs))
        try:
            return call(self, *args, **kwargs)
        finally:
            called.reset(mark)

    noting.tasklock_notes = True  # type: ignore[attr-defined]
    cls.__call__ = noting
