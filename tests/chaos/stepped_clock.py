"""A wall clock that is set forward and back by an hour again and again."""

from __future__ import annotations

import time

__all__ = ["step_the_clock"]

STEPS = (0.0, 3600.0, 0.0, -3600.0)
"""by how many seconds the clock is wrong, one after the other"""
EACH_SECONDS = 1.7


def step_the_clock() -> None:
    """Have `time.time` of this process step; its other clocks go on."""
    right, began = time.time, time.monotonic()

    def stepped() -> float:
        passed = int((time.monotonic() - began) / EACH_SECONDS)
        return right() + STEPS[passed % len(STEPS)]

    time.time = stepped
