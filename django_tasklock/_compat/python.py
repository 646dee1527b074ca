"""What CPython has on some systems or versions only, or does not promise."""

from __future__ import annotations

import os
import sys

__all__ = ["caller_id", "has_pidfd", "open_pidfd"]


def has_pidfd() -> bool:
    """Whether the system has pidfds: Linux 5.3 or newer, and a Python that was built for it."""
    return hasattr(os, "pidfd_open")


def open_pidfd(pid: int) -> int:
    """A file descriptor that becomes readable when the process ``pid`` ends.

    Raises `OSError`; `ProcessLookupError` if there is no such process. Only where `has_pidfd`.
    """
    return os.pidfd_open(pid)


def caller_id(depth: int) -> int:
    """Identifies a call that is still running: 0 is the caller of this function, 1 the caller of
    that one.

    ``sys._getframe`` is CPython's own; PyPy has it too.
    """
    return id(sys._getframe(depth + 1))
