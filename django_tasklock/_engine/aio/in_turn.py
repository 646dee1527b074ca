"""Calls of a coroutine that use Django's ORM, and that nothing interrupts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from asgiref.sync import sync_to_async

__all__ = ["InTurn"]

T = TypeVar("T")


class InTurn:
    """Makes the calls of one coroutine one after the other, in the thread of `sync_to_async`.

    A thread cannot be cancelled: it goes on with a call of which `sync_to_async` has cancelled the
    future, and a call that waits for the thread is dropped. Here a call is made to its end, and
    what comes after it finds what it has done.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._over = False

    async def make(self, call: Callable[..., T], *args: object) -> T:
        """Make a call. If the coroutine is cancelled meanwhile, that is raised when it has ended.

        Returns, or raises, what the call does.
        """
        # A task of its own, because a cancelled one would drop the call.
        made = asyncio.ensure_future(sync_to_async(self._make)(call, *args))
        cancelled: asyncio.CancelledError | None = None
        while not made.done():
            try:
                await asyncio.wait({made})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return made.result()
        if not made.cancelled():
            made.exception()  # Or asyncio would log that nobody has asked for it.
        raise cancelled

    def make_last(self, call: Callable[..., object], *args: object) -> None:
        """Make a call after the one that is being made, if any, and none after that.

        Called in a thread, for a coroutine that was closed and cannot wait.
        """
        with self._turn:
            self._over = True
            call(*args)

    def _make(self, call: Callable[..., T], *args: object) -> T:
        with self._turn:
            # Once it is over nobody looks at what this returns.
            return cast("T", None) if self._over else call(*args)
