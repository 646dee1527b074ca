"""Calls to stores for code on an event loop: none blocks the loop, and a waiter holds no thread.

A call takes a round trip, and is made in one of a few threads of its store: a silent store delays
no other one, and many questions delay no release. The threads start when they are needed, and stay.
The end of the process waits for the calls that they were asked for.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.core.cache import caches
from django.db import connections

from .._compat.native_threads import start_thread
from .._values.processes import OfProcess
from .waiting import Pause, Steps, advance

P = ParamSpec("P")
T = TypeVar("T")

# Threads of a store, at most. More are no faster: they take turns at the interpreter, and the
# loop's own thread waits longer for its turn.
THREADS = {"asking": 4, "releasing": 2}
# How often a waiter looks whether the holder's process lives. Each look takes a thread.
OWNER_CHECK_SECONDS = 0.25


async def drive(alias: str, steps: Steps[T], undo: Callable[[], object]) -> T:
    """Make steps in threads. Returns, or raises, what they do.

    If the caller is cancelled, or its coroutine is closed or collected, the steps are closed in a
    thread, after the one that is being made. The caller does not wait for that.

    Args:
        alias: of the store whose threads make them.
        steps: what is to be done. Each is made in a copy of the caller's context.
        undo: called in a thread when the steps are closed. They may have come to their end just
            before, with a result that nobody gets.
    """
    loop = asyncio.get_running_loop()
    pause: Pause | None = None
    result: T

    def wake(woken: asyncio.Future[None]) -> None:
        try:
            # To cancel it again, when it is over, does nothing.
            loop.call_soon_threadsafe(woken.cancel)
        except RuntimeError:
            # The loop is closed. The waiter passes on what is perhaps handed over just now.
            _submit(alias, "releasing", steps.close)

    def give_up(step: Future[Any]) -> None:
        try:
            if not step.cancel():
                wait([step])
            steps.close()
        finally:
            undo()

    while True:
        woken = loop.create_future()
        step = _submit(alias, "asking", partial(_advance, steps, pause, partial(wake, woken)))
        try:
            pause, result = await asyncio.wrap_future(step)
            if pause is None:
                return result
            await asyncio.wait([woken], timeout=pause.seconds)
        except GeneratorExit:
            _soon(partial(give_up, step))
            raise
        except BaseException:
            _submit(alias, "releasing", partial(give_up, step))
            raise
        finally:
            del step  # What it raised refers to this frame.


async def in_thread(alias: str, call: Callable[[], T]) -> T:
    """Make a call to the store ``alias`` in a thread. Returns, or raises, what it does."""
    return await asyncio.wrap_future(_submit(alias, "asking", call))


async def finish(alias: str, call: Callable[[], T]) -> T:
    """As `in_thread`, for a call that is made whatever is cancelled, such as a release."""
    return await asyncio.shield(asyncio.wrap_future(_submit(alias, "releasing", call)))


@functools.cache
def _pool(alias: str, what: str) -> OfProcess[ThreadPoolExecutor]:
    # Not kept in the store: to make one may import its client, too slow for an event loop.
    return OfProcess(partial(ThreadPoolExecutor, THREADS[what], f"tasklock-{alias}"))


def _advance(
    steps: Steps[Any], pause: Pause | None, wake: Callable[[], None]
) -> tuple[Pause | None, Any]:
    """Begin with the steps, or go on after a pause. Returns the next pause, which is over when its
    seconds are, or ``wake`` is called; or None, and what the steps return."""
    waiter = None if pause is None else pause.waiter
    try:
        pause = advance(steps, partial(waiter.wait, 0)) if waiter else next(steps)
    except StopIteration as end:
        return None, end.value
    look = OWNER_CHECK_SECONDS if pause.watched else pause.seconds
    next_look = pause.seconds if pause.waiter is None else pause.waiter.wake_by(wake)
    return pause._replace(seconds=min(pause.seconds, look, next_look)), None


def _submit(alias: str, what: str, call: Callable[[], T]) -> Future[T]:
    """Have a call made in one of a store's threads, in a copy of this context."""
    return _pool(alias, what).own().submit(copy_context().run, _call_and_close, call)


def _soon(call: Callable[[], object]) -> None:
    """Have a call made for a coroutine that is closed. What it raises is told to nobody.

    In a thread of its own: the garbage collector may close a coroutine at any place of other code,
    also where this thread holds the locks of a pool.
    """

    def quietly() -> None:
        with suppress(BaseException):
            _call_and_close(call)

    with suppress(RuntimeError):  # The process ends, or the system starts no thread.
        start_thread(quietly)


def _call_and_close(call: Callable[[], T]) -> T:
    """Make a call, and close what it has opened of Django's: there is no request here, at whose end
    Django would do that."""
    # Caches are kept in the context. Those that came with it are the task's.
    known = caches.all(initialized_only=True)
    try:
        return call()
    finally:
        connections.close_all()
        for cache in caches.all(initialized_only=True):
            if cache not in known:
                cache.close()


def awaited(
    verb: Callable[Concatenate[Any, P], T],
    made: Callable[[str, Callable[[], T]], Coroutine[Any, Any, T]] = in_thread,
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return what does for ``await`` what a verb of a store's service does."""

    @functools.wraps(verb)
    async def verb_awaited(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await made(self.alias, partial(verb, self, *args, **kwargs))

    return verb_awaited
