"""Processes that tests start: whether one lives, and how it is ended."""

from __future__ import annotations

import subprocess

import psutil

__all__ = ["end_politely", "lives"]

END_SECONDS = 20.0


def lives(process: psutil.Process) -> bool:
    """Whether the process has not ended; a zombie has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_politely(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for one that has not ended after `END_SECONDS`."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
