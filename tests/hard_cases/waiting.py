"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], within: float, what: str, every: float = 0.02) -> T:
    """Ask until the answer is true and return it.

    Args:
        condition: asked again and again.
        within: seconds after which ``AssertionError`` is raised.
        what: what is waited for, for the error's text.
        every: seconds between two questions.
    """
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within} s: {what} (last answer: {answer!r})")
        time.sleep(every)
