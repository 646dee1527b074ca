"""Run a command that the kernel ends when the process which started it dies.

A pool child killed by SIGKILL cannot end its ffmpeg: the orphan would go on, beside the next run of
the same job. On Linux the kernel does it (``PR_SET_PDEATHSIG``), if the new process asks for it
before it becomes ffmpeg. Started as a script, this file does that: it asks, and then executes the
command in its own place. (A ``preexec_fn`` would run Python between fork and exec of a process that
has threads, where any lock that another thread held is held for ever.)

Elsewhere the command runs as it is, and its output directory, which belongs to one run alone, is
what keeps it out of the next run's way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(command: Sequence[str], *, by: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command line that runs `command` for as long as this thread's process lives.

    Args:
        command: the program, by its path or by its name on the PATH, and its arguments.
        by: the signal the program gets when the calling process is gone.
    """
    # -I -S: starts in milliseconds, and does not put this folder on the path.
    launcher = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(by))]
    return [*launcher, *command]


def main(parent: int, by: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), by)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
