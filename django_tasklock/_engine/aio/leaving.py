"""The release at the end of a block, whatever has ended it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ...exceptions import StoreUnavailable
from .drive import finish
from .lanes import lanes_of

__all__ = ["left_with"]


async def left_with(alias: str, error: BaseException | None, leave: Callable[[], None]) -> None:
    """Make the call that releases what a block held, which ends with ``error``.

    A coroutine that is closed, or collected with its loop, ends with `GeneratorExit`. It cannot
    wait for anything: the call is made soon then, and what it raises is told to nobody.
    """
    if not isinstance(error, GeneratorExit):
        try:
            await finish(alias, leave)
        except StoreUnavailable:
            # No thread was free to begin with it: it is made later.
            if error is None:
                raise
        return

    def soon() -> None:
        with suppress(BaseException):
            leave()

    with suppress(RuntimeError):  # The system starts no thread.
        lanes_of(alias).releasing.submit(soon)
