"""The clock that leases are measured by."""

from __future__ import annotations

import time

__all__ = ["now"]

if hasattr(time, "CLOCK_BOOTTIME"):
    _BOOTTIME = time.CLOCK_BOOTTIME

    def now() -> float:
        """Seconds on a clock that is never set, and that goes on while the machine sleeps.

        A server's TTL runs on through a suspend; CLOCK_MONOTONIC does not (clock_gettime(2)),
        so a lease measured by it would outlive its key.
        """
        return time.clock_gettime(_BOOTTIME)

else:
    # freezegun replaces the function wherever it finds it in a module, but not in here. A caller
    # that waits would wait for ever while time is frozen.
    _functions = (time.monotonic,)

    def now() -> float:
        """Seconds on a clock that is never set."""
        return _functions[0]()
