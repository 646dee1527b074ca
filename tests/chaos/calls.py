"""How a thread of a player makes its calls, and writes down what came of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from django_tasklock import StoreUnavailable
from tests.chaos.bounds import NAMES
from tests.chaos.history import History
from tests.chaos.interrupts import HardInterrupt, Interrupts, SoftInterrupt, where

__all__ = ["INTERRUPTED_SECONDS", "Calls"]

T = TypeVar("T")

INTERRUPTED_SECONDS = 0.4
"""of the main thread's calls"""


class Answer(Generic[T]):
    """That a call returned, and what."""

    def __init__(self, value: T) -> None:
        self.value = value


class Calls:
    """The calls of one thread.

    Args:
        seed: what the thread does depends on this, and on its own name, alone.
        interrupts: those of the main thread; others get some that never raise.
    """

    def __init__(self, history: History, thread: int, seed: str, interrupts: Interrupts) -> None:
        self._history = history
        self._thread = f"{history.process}/{thread}"
        self._chance = Random(f"{seed}/{self._thread}")
        self._interrupts = interrupts
        self._calls = 0
        self._hurried = False
        """whether a call was interrupted a moment ago"""

    def _begin(self, name: str = "") -> tuple[str, str]:
        """The name of a new call, which becomes that of the thread, and a lock's name, by default
        any."""
        self._calls += 1
        call = f"{self._thread}/{self._calls}"
        threading.current_thread().name = call
        return call, name or self._chance.choices(NAMES, weights=[8, 6, 4, 2, 1])[0]

    def _write(
        self, kind: str, call: str, name: str = "", *, at: float | None = None, **says: object
    ) -> None:
        self._history.write(kind, at=at, call=call, name=name, **says)

    def _try(self, verb: str, call: str, name: str, work: Callable[[], T]) -> Answer[T] | None:
        """What the call returned; None, and it is written down, if it raised."""
        interrupts = self._interrupts
        try:
            interrupts.arm(INTERRUPTED_SECONDS)
            # From here to the next line no signal is served: what was granted is noticed.
            value = work()
            interrupts.armed = False
            return Answer(value)
        except BaseException as error:
            interrupts.armed = False
            self._failed(verb, call, name, error)
            return None

    def _failed(self, verb: str, call: str, name: str, error: BaseException) -> None:
        at, kind = where(error), type(error).__name__
        if isinstance(error, SoftInterrupt | HardInterrupt):
            self._write("interrupted", call, name, verb=verb, where=at)
            self._hurried = True
        elif isinstance(error, StoreUnavailable):
            self._write("unavailable", call, name, verb=verb, reason=str(error), where=at)
        else:
            self._write("raised", call, name, verb=verb, error=f"{kind}: {error}", where=at)
