"""Steps that are made in threads, for a task on an event loop, which holds no thread meanwhile."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import ref

from ..._values.owner import Owner
from ..._values.owner_record import recorded_as
from ..._values.strands import name_of_task, name_of_thread
from ...exceptions import StoreUnavailable
from ..running import acting_for, job_here, running
from ..steps import Pause, Steps
from .lanes import lanes_of, with_own_caches
from .owner_watch import owner_watch

__all__ = ["Drive"]

T = TypeVar("T")

LATE_SECONDS = 5.0
"""how long a step waits for a thread, before it is an outage that all are busy with slow calls"""
UNDO_SECONDS = 1.0
"""how long a cancelled task waits until what it had begun is undone, which is a round trip. After
that it goes on, and so does the undoing"""
FOREIGN_POLL_SECONDS = 0.1
"""how often a waiter that cannot wake anybody is asked for news"""


class Drive(Generic[T]):
    """One call of a task.

    What undoes it may come from the task, the threads or the garbage collector. So each of two
    lists has one item, and who removes it may do what the list is about.
    """

    def __init__(
        self,
        alias: str,
        steps: Steps[T],
        undo: Callable[[bool], object],
        *,
        releases: bool = False,
    ) -> None:
        self._alias = alias
        self._lanes = lanes_of(alias)
        self._acting = threading.Lock()
        """held by the thread that acts for the task"""
        self._lane = self._lanes.releasing if releases else self._lanes.asking
        self._releases = releases
        self._steps = steps
        self._undo_all = undo
        self._undoing: list[None] = [None]
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._who, self._job = running(), job_here()
        task = self._who.task
        self._name = name_of_thread() if task is None else name_of_task(task)
        me = ref(self)
        # What is told of news must not keep a task alive whose loop is gone.
        self._wake = lambda: _wake(me)
        self._pause: Pause | None = None
        self._seconds = math.inf
        self._watched: Owner | None = None
        self._woken = False
        self._waking: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._begun = self._done = self._undone = False
        self._value: T | None = None
        self._error: BaseException | None = None

    async def run(self) -> T:
        while True:
            self._woken = False
            self._begun = False
            arrival, awaited = self._loop.create_future(), [None]
            late = self._loop.call_later(LATE_SECONDS, self._is_late, arrival, awaited)
            try:
                self._lane.submit(partial(self._make_step, arrival, awaited))
                await arrival
            except BaseException as error:
                await self._stop(error, awaited)
                raise
            finally:
                late.cancel()
            if self._error is not None:
                try:
                    raise self._error
                finally:
                    self._error = None  # It refers to this frame.
            if self._done:
                return cast("T", self._value)
            try:
                await self._sleep()
            except BaseException as error:
                await self._stop(error, [])
                raise

    async def _sleep(self) -> None:
        """Return when there may be news, or when it is time to look."""
        if self._woken:
            return
        waking = self._waking = self._loop.create_future()
        timer = None
        if self._seconds < math.inf:
            timer = self._loop.call_later(max(0.0, self._seconds), _set, waking)
        try:
            await waking
        finally:
            if timer is not None:
                timer.cancel()

    def _is_late(self, arrival: asyncio.Future[None], awaited: list[None]) -> None:
        """The step was submitted `LATE_SECONDS` ago. It may wait for a thread in vain."""
        if self._begun or arrival.done():
            return
        if self._lane.is_stuck() and _claimed(awaited):
            reason = "all threads that call it wait for its answers"
            arrival.set_exception(StoreUnavailable(self._alias, reason))
        else:
            self._loop.call_later(LATE_SECONDS, self._is_late, arrival, awaited)

    def _wake_up(self) -> None:
        self._woken = True
        if self._waking is not None:
            _set(self._waking)

    async def _stop(self, error: BaseException, awaited: list[None]) -> None:
        """Undo what was begun, because of ``error``. ``awaited`` is that of the last step."""
        closed = isinstance(error, GeneratorExit)  # Then nothing can be awaited.
        over = None if closed else self._loop.create_future()
        self._over = over
        unread = _claimed(awaited)
        if self._releases:
            if not unread:
                return
        elif not (unread and self._begun):  # Otherwise the thread that makes the step sees it.
            if self._pause is None and not self._begun:
                return
            with suppress(RuntimeError):
                self._lanes.releasing.submit(self._undo)
        if over is not None:
            await asyncio.wait({over}, timeout=UNDO_SECONDS)

    # ------------------------------------------------------------- in a thread of a lane

    def _make_step(self, arrival: asyncio.Future[None], awaited: list[None]) -> None:
        if awaited or self._releases:
            self._begun = True
            self._act(self._advance)
        if _claimed(awaited):
            try:
                self._loop.call_soon_threadsafe(_set, arrival)
                return
            except RuntimeError:
                pass  # The loop is closed.
        if self._releases:
            self._tell_over()
        else:
            self._undo()

    def _advance(self) -> None:
        """Make one step."""
        try:
            resume = self._resumed()
            while True:
                self._pause = resume()
                try:
                    self._seconds = self._prepare(self._pause)
                    return
                except BaseException as error:
                    resume = partial(self._steps.throw, error)
        except StopIteration as end:
            self._value, self._done = end.value, True
        except BaseException as error:
            self._error = error
            if _claimed(self._undoing):
                self._close()

    def _resumed(self) -> Callable[[], Pause]:
        """What goes on with the steps, after the news that the last pause was for."""
        pause = self._pause
        if pause is None:
            return partial(next, self._steps)
        self._unwatch()
        try:
            news = None if pause.waiter is None else pause.waiter.wait(0)
        except BaseException as error:
            return partial(self._steps.throw, error)
        return partial(self._steps.send, news)

    def _prepare(self, pause: Pause) -> float:
        """See to it that the task is woken. Return the seconds after which it looks by itself."""
        waiter, seconds = pause.waiter, pause.seconds
        if waiter is not None:
            wake_by = getattr(waiter, "wake_by", None)
            longest = FOREIGN_POLL_SECONDS if wake_by is None else wake_by(self._wake)
            seconds = min(seconds, longest)
        if pause.holder is not None:
            with suppress(RuntimeError):  # The system starts no thread: the lease ends by itself.
                self._watched = owner_watch.add(pause.holder.owner, self._wake)
        return seconds

    def _unwatch(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            owner_watch.remove(watched, self._wake)

    def _undo(self) -> None:
        if _claimed(self._undoing):
            self._act(self._close)
        if self._undone:
            self._tell_over()

    def _close(self) -> None:
        self._unwatch()
        with suppress(BaseException):  # Nobody is left who could be told.
            self._steps.close()
        with suppress(BaseException):
            self._undo_all(self._done)
        self._undone = True

    def _tell_over(self) -> None:
        if self._over is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_set, self._over)

    def _act(self, call: Callable[[], None]) -> None:
        with self._acting, acting_for(self._who, self._job), recorded_as(self._name):
            # A copy, or a cache that one step has opened would count as the task's in the next.
            self._context.copy().run(with_own_caches, call)


def _claimed(claim: list[None]) -> bool:
    try:
        claim.pop()
    except IndexError:
        return False
    return True


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wake(of: ref[Drive[Any]]) -> None:
    drive = of()
    if drive is None:
        return
    try:
        drive._loop.call_soon_threadsafe(drive._wake_up)
    except RuntimeError:
        # The loop is closed, and what the task waited for is perhaps handed to it.
        with suppress(RuntimeError):
            drive._lanes.releasing.submit(drive._undo)
