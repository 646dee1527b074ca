"""For how long a server has kept every lease."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Memory

__all__ = ["memory_of"]


def memory_of(reply: Sequence[bytes] | None = None) -> Memory | None:
    """What the scripts with ``memory.lua`` return, in seconds; None of nothing."""
    if reply is None:
        return None
    up, unbroken = reply
    return Memory(up=float(up), unbroken=int(unbroken) / 1_000_000)
