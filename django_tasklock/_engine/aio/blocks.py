"""``async with lock(...)``, and ``@lock(...)`` over ``async def``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, overload

from ...exceptions import LockNotAcquired
from ..running import acting_for, running
from ..taker import Taker, Template
from ..use import Use, entering, looked_up
from .drive import drive
from .leaving import left_with
from .verbs import left

__all__ = ["AsyncExit", "entered", "locked_coroutine"]


def entered(block: Any) -> Coroutine[Any, Any, Any]:
    """``__aenter__`` of the `lock()` object ``block``. Not itself a coroutine, because the use of
    the block is known only in the call."""
    return _take(block, entering(block, 3))


async def _take(block: Any, found: Use | None) -> Any:
    taker: Taker[Any] = block._taker
    use = found or block._new_use(block._by_hand)
    held = await drive(taker.service.alias, taker.take(block.name, use, block.wait), left(use))
    if found is None:
        with acting_for(running()):  # As the thread that releases it will.
            use.keep()
    return held


def _left(block: Any, use: Use, error: BaseException | None) -> Coroutine[Any, Any, None]:
    """The end of a block with ``error``."""
    alias: str = block._taker.service.alias
    return left_with(alias, error, lambda: use.leave(failed=error is not None))


class _Leaving:
    """The ``__aexit__`` of one block."""

    __slots__ = ("_block", "_use")

    def __init__(self, block: Any, use: Use) -> None:
        self._block, self._use = block, use

    def __call__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Coroutine[Any, Any, None]:
        return _left(self._block, self._use, error)


class _LeavingOfClass:
    """An ``__aexit__`` that was looked up on the class, as `contextlib.AsyncExitStack` does."""

    __slots__ = ("_of_class",)

    def __init__(self, of_class: Any) -> None:
        self._of_class = of_class

    def __call__(
        self, block: Any, kind: type[BaseException] | None, error: BaseException | None, *_: Any
    ) -> Coroutine[Any, Any, None]:
        use: Use = self._of_class.use or block._new_use(block._by_hand)
        return _left(block, use, error)


class AsyncExit:
    """An ``__aexit__`` with a new `Use` each time that it is looked up: see `Exit`.

    ``async with`` looks up ``__aexit__`` before it calls ``__aenter__``, as ``with`` does.
    """

    @overload
    def __get__(self, block: None, owner: type[Any]) -> _LeavingOfClass: ...
    @overload
    def __get__(self, block: Any, owner: type[Any]) -> _Leaving: ...
    def __get__(self, block: Any, owner: type[Any]) -> _Leaving | _LeavingOfClass:
        use = looked_up(block, 2)
        return _LeavingOfClass(use) if block is None else _Leaving(block, use)


def locked_coroutine(
    function: Callable[..., Any], template: Template, block: Any, skips: bool
) -> Any:
    """Return the coroutine function under the lock, with a lease of its own for each call."""

    taker: Taker[Any] = block._taker
    alias = taker.service.alias

    @functools.wraps(function)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        use = taker.new_use(None)
        use.template = block.name
        taking = taker.take(template.fill(args, kwargs), use, block.wait)
        try:
            await drive(alias, taking, left(use))
        except LockNotAcquired:
            if skips:
                return None
            raise
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            await _left(block, use, error)
            raise
        await _left(block, use, None)
        return result

    return locked
