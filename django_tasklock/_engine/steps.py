"""Work that waits now and then, as steps: for a caller that blocks, and for one on an event loop.

Such work is a generator. It yields a `Pause` where it has to wait, and gets the news of it. Between
two pauses it calls the store, which blocks for a round trip. `blocking` does all of that in the
calling thread; `aio.drive` makes the steps in a few threads and holds none while it waits. Both end
the generator if their caller is interrupted, so ``except BaseException`` in it sees every end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar, cast

from .._values.lock_info import LockInfo
from ..stores.base import Grant, Refusal, Waiter
from . import lease_state

__all__ = ["OWNER_CHECK_SECONDS", "Pause", "Steps", "blocking", "driven", "steps_of"]

P = ParamSpec("P")
R = TypeVar("R")

OWNER_CHECK_SECONDS = 0.05
"""how often a waiter checks that the holder's process, on this machine, still lives"""


class Pause:
    """What the work waits for: news of a waiter, or only that some time passes.

    ``seconds``: how long at most; it may be less. ``holder``: the pause also ends when the process
    of this holder could have died.
    """

    __slots__ = ("holder", "seconds", "waiter")

    def __init__(
        self, seconds: float, waiter: Waiter | None = None, holder: LockInfo | None = None
    ) -> None:
        self.seconds = seconds
        self.waiter = waiter
        self.holder = holder

    def wait(self) -> Grant | Refusal | None:
        """Wait in this thread. Returns what `Waiter.wait` returns."""
        if self.waiter is None:
            time.sleep(self.seconds)
            return None
        if self.holder is None:
            return self.waiter.wait(self.seconds)
        return self.waiter.wait(min(self.seconds, OWNER_CHECK_SECONDS))


Steps = Generator[Pause, "Grant | Refusal | None", R]


def blocking(steps: Steps[R]) -> R:
    """Do the work in this thread. Returns, or raises, what it does."""
    process = lease_state.process
    try:
        pause = next(steps)
        while True:
            try:
                news = pause.wait()
            except BaseException as error:
                _check_process(process, steps)
                pause = steps.throw(error)
            else:
                _check_process(process, steps)
                pause = steps.send(news)
    except StopIteration as end:
        return cast("R", end.value)
    except BaseException:
        # From a signal handler, just between two steps.
        if lease_state.process == process:
            steps.close()
        raise


_of_parents: list[Any] = []
"""steps that a fork has copied into this process. They are never closed: what they would undo is
the parent's"""


def _check_process(process: int, steps: Steps[Any]) -> None:
    """Raise `RuntimeError` in a forked child, to which a greenlet of its parent's was copied."""
    if lease_state.process != process:
        _of_parents.append(steps)
        raise RuntimeError("this process was forked from one that waited for a lock here")


def driven(function: Callable[P, Steps[R]]) -> Callable[P, R]:
    """Make a function or method that does the work, in the calling thread, of one that returns its
    steps. `steps_of` returns the steps."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return blocking(function(*args, **kwargs))

    return call


def steps_of(call: Callable[P, R]) -> Callable[P, Steps[R]]:
    """Return what makes the steps of a function or bound method that is `driven`."""
    of: Any = call
    steps = of.__wrapped__
    owner = getattr(of, "__self__", None)
    return cast("Callable[P, Steps[R]]", steps if owner is None else steps.__get__(owner))
