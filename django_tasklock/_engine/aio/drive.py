"""How code on an event loop makes calls to a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..steps import Steps
from .driving import Drive

__all__ = ["drive", "finish", "in_thread"]

T = TypeVar("T")


async def drive(alias: str, steps: Steps[T], undo: Callable[[bool], object]) -> T:
    """Make the steps in threads of the store ``alias``. Returns, or raises, what they do.

    If they raise, ``undo(False)`` is called in the thread. If the caller is cancelled, or its
    coroutine is closed or collected, the steps are closed wherever they are, and then ``undo`` is
    called in a thread; its argument says whether the steps had come to their end.
    """
    return await Drive(alias, steps, undo).run()


async def in_thread(alias: str, call: Callable[[], T]) -> T:
    """Make a call to a store in a thread. Returns, or raises, what it does."""
    return await Drive(alias, _only(call), _undo_nothing).run()


async def finish(alias: str, call: Callable[[], T]) -> T:
    """As `in_thread`, for a call that is made whatever is cancelled, such as a release."""
    return await Drive(alias, _only(call), _undo_nothing, releases=True).run()


def _only(call: Callable[[], T]) -> Steps[T]:
    """A call as the only step."""
    yield from ()
    return call()


def _undo_nothing(_done: bool) -> None:
    pass
