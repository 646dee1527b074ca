"""The clock that leases are measured by."""

from __future__ import annotations

import time

__all__ = ["now"]

if hasattr(time, "CLOCK_BOOTTIME"):
    _BOOTTIME = time.CLOCK_BOOTTIME

    def now() -> float:
        """Seconds on a clock that never steps, and that goes on while the machine sleeps.

        A server's TTL runs on through a suspend; CLOCK_MONOTONIC does not (clock_gettime(2)),
        so a lease measured by it would outlive its key.
        """
        return time.clock_gettime(_BOOTTIME)

else:
    now = time.monotonic
