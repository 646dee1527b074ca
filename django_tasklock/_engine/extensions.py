"""Waiting for the extensions of a lease that are on their way to the store."""

from __future__ import annotations

import time

from .._values import clock
from .lease import Lease

__all__ = ["await_extensions"]

LONGEST_SECONDS = 2.0
"""how long a release waits for a renewal that is under way"""
POLL_SECONDS = 0.001
"""the pause between two looks"""


def await_extensions(lease: Lease, until: float | None = None) -> bool:
    """Wait until no extension of a lease is under way, at most until ``until``, on `clock.now`.
    None: for `LONGEST_SECONDS`, since a receiver of a signal may release a lease in the very thread
    that renews it.

    Returns whether none is. The lease is not held any more, so that none begins: one that reached
    the store after what is about to be done would change when the lease ends.
    """
    if until is None:
        until = clock.now() + LONGEST_SECONDS
    while lease._extensions():
        if clock.now() >= until:
            return False
        time.sleep(POLL_SECONDS)
    return True
