"""The clock that leases are measured by."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# Seconds on a clock that is never set, and that goes on while the machine sleeps, where it has one.
# A server's TTL runs on through a suspend; CLOCK_MONOTONIC does not (clock_gettime(2)), so a lease
# measured by it would outlive its key. A partial, and not the function itself: freezegun replaces
# functions wherever it finds them in a module, and a caller that waits would wait for ever.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else partial(time.monotonic)
)
