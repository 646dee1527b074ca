"""
The process between ``locks run`` and its command, in which this file is the whole program.

It leads the process group of the command, and its id is recorded in the lease: while a process of
the group lives, nobody on this machine takes the lock over. It starts the command when it is told
to by a byte. The end of its input is the end of ``locks run``: then it kills the whole group, for
nobody renews the lease any more.

It imports nothing but the standard library. Arguments: the number of a socket, and the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main(pipe: int, command: list[str]) -> int:
    """Run the command; return its exit status, or 128 + the signal that ended it."""
    # They are for the command, which gets those that come before it is there. A function, since the
    # command would inherit SIG_IGN.
    early: list[int] = []
    handle_signals(lambda number, _: early.append(number))
    if not os.read(pipe, 1):
        return 1
    threading.Thread(target=kill_at_the_end_of, args=(pipe,), daemon=True).start()
    try:
        process = subprocess.Popen(command)
        for number in tuple(early):
            process.send_signal(number)
        code = process.wait()
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    return code if code >= 0 else 128 - code


def say(words: str) -> None:
    """Write a line to stderr, which may be full, or closed: Python has none then."""
    with suppress(Exception):
        sys.stderr.write(f"{words}\n")


def handle_signals(handler: Callable[[int, object], None]) -> None:
    """Have ``handler`` called for the signals that are passed on. What the caller (nohup, a shell's
    background) has ignored stays ignored."""
    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def kill_at_the_end_of(pipe: int) -> None:
    """Wait for the end of ``locks run``, and kill the group, this process included."""
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
