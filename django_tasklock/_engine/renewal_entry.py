"""When a lease is to be extended."""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from .lease import Lease
from .lease_state import HELD

__all__ = ["Entry", "counts"]


class Entry(NamedTuple):
    """A lease that is to be extended at ``due`` (on `clock.now`), ``delay`` seconds after it was
    added. ``order`` decides between two that are due at the same moment."""

    due: float
    order: int
    delay: float
    lease: ref[Lease]


def counts(entry: Entry) -> bool:
    """Whether the lease is held, and nothing else is planned for it."""
    lease = entry.lease()
    return lease is not None and lease._state == HELD and lease._due == entry.due
