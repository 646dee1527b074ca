"""Waiting for a condition instead of for a time: every test and its helpers wait in this way."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""seconds to wait for what must happen, before a test fails"""


def until(
    condition: Callable[[], T], what: str = "it", within: float = PATIENCE, every: float = 0.01
) -> T:
    """Ask until the answer is true, and return it.

    Args:
        condition: asked again and again, at least once.
        what: what is waited for, for the error's text.
        within: seconds after which ``AssertionError`` is raised.
        every: seconds between two questions.
    """
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            faulthandler.dump_traceback()  # What the threads wait for.
            raise AssertionError(f"{what}: not within {within} s (last answer: {answer!r})")
        time.sleep(every)
    return answer
