"""The steps that several files of tests of the stores have in common."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from django_tasklock import StoreUnavailable
from tests.interruptions import Interrupt, signalled
from tests.waiting import until

__all__ = ["answered", "interrupted_at_random"]

T = TypeVar("T")


def answered(call: Callable[[], T]) -> T:
    """What it returns, once the store answers: an outage may last for more than one call."""

    def ask() -> list[T]:
        with suppress(StoreUnavailable):
            return [call()]
        return []

    return until(ask, "an answer")[0]


def interrupted_at_random(
    call: Callable[[int], Any], *, times: int, within: float, after: Callable[[], Any] = tuple
) -> int:
    """Call it so often, with its number, and have the handler of a signal raise in it somewhere in
    the first ``within`` seconds. Returns how often it came so far."""
    cut = 0
    for number in range(times):
        try:
            with signalled(Interrupt(), random.uniform(0.00001, within)):
                call(number)
        except Interrupt:
            cut += 1
        after()
    return cut
