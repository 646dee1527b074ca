"""Whether a process lives."""

from __future__ import annotations

import psutil


def lives(process: psutil.Process) -> bool:
    """Whether the process has not ended; a zombie has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
