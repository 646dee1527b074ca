"""Exceptions at any moment, as from a soft time limit or Ctrl-C."""

from __future__ import annotations

import math
import signal
from random import Random
from types import FrameType, TracebackType

__all__ = ["HardInterrupt", "Interrupts", "SoftInterrupt", "where"]

SHORTEST_SECONDS, LONGEST_SECONDS = 0.00005, 0.3
"""seconds from `Interrupts.arm` to the exception"""


class SoftInterrupt(Exception):
    """What a soft time limit raises."""


class HardInterrupt(BaseException):
    """What Ctrl-C raises."""


class Interrupts:
    """Raises an exception in the main thread, once for each time that it is armed.

    To disarm it assign False to ``armed``, which, unlike a call, cannot itself be interrupted.
    Made with None it never raises: for the threads that get no signals.
    """

    def __init__(self, chance: Random | None) -> None:
        self.armed = False
        self.never = chance is None
        self._chance = chance
        if chance is not None:
            signal.signal(signal.SIGALRM, self._raise)

    def arm(self, probability: float) -> None:
        """Raise after a random time, or, mostly, do nothing."""
        chance = self._chance
        if chance is None or chance.random() >= probability:
            return
        self.armed = True
        # All magnitudes alike: a handshake takes less than a millisecond, a wait a second.
        delay = math.exp(chance.uniform(math.log(SHORTEST_SECONDS), math.log(LONGEST_SECONDS)))
        signal.setitimer(signal.ITIMER_REAL, delay)

    def _raise(self, signum: int, frame: FrameType | None) -> None:
        if self.armed and self._chance is not None:
            self.armed = False
            raise self._chance.choice([SoftInterrupt, HardInterrupt])


def where(error: BaseException, frames: int = 4) -> str:
    """The innermost places in which an exception was raised, the signal handler left out."""
    places = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code is not Interrupts._raise.__code__:
            file = code.co_filename.rpartition("/")[2]
            places.append(f"{file}:{trace.tb_lineno}:{code.co_name}")
        trace = trace.tb_next
    return "<".join(reversed(places[-frames:]))
