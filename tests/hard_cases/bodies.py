"""What a task can be busy with: waiting, a subprocess, computing, or stuck in C."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable


def sleep(seconds: float) -> None:
    """Wait, with the interpreter's lock given away."""
    time.sleep(seconds)


def child(seconds: float) -> None:
    """Wait for a subprocess."""
    subprocess.run(
        [sys.executable, "-S", "-E", "-c", f"import time; time.sleep({seconds})"], check=True
    )


def compute(seconds: float) -> None:
    """Keep the interpreter busy; other threads get their turns."""
    until = time.monotonic() + seconds
    number = 1
    while time.monotonic() < until:
        for _ in range(10_000):
            number = number * 1103515245 % 2147483647


def stuck(seconds: float) -> None:
    """A C call that keeps the interpreter's lock: no other thread and no signal handler runs.

    Signals wait until it is over, as they do for C code that goes on after an interruption.
    """
    library = ctypes.PyDLL(None)
    request = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        library.nanosleep(request, None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


BODIES: dict[str, Callable[[float], None]] = {
    "sleep": sleep,
    "child": child,
    "compute": compute,
    "stuck": stuck,
}
