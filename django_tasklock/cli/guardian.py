"""
The process between ``locks run`` and its command, in which this file is the whole program.

When ``locks run`` is killed, nobody renews its lease any more. The guardian then kills the command
and all that it started, and ends when the last of them has. Its process group is recorded in the
lease, so nobody on this machine takes the lock over before that.

It imports nothing but the standard library: it is started without the site's packages. Arguments:
the number of a socket, the process group that the command joins (0: that of the guardian), and the
command. Each byte from the socket is a signal for the command; the first one is `START`. The end
of the stream is the end of ``locks run``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

START = 0
LEFT_TO_THE_COMMAND = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP")
RESET_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
BETWEEN = 0.01
"""seconds between two looks for processes that are still to be killed"""

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


def main(number: str, group: str, *command: str) -> None:
    """Run the command. Exits with its status, or with 128 + the signal that ended it."""
    os.setpgid(0, 0)
    parent = socket.socket(fileno=int(number))
    parent.set_inheritable(False)
    inherited: dict[int, Handler] = {}
    for name in LEFT_TO_THE_COMMAND:
        inherited[getattr(signal, name)] = signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":
        # What loses its parent becomes a child of the guardian, whatever session it is in.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    first = parent.recv(1)
    if first != bytes([START]):
        os._exit(128 + first[0] if first else 1)
    Guardian(parent, int(group), inherited, command).wait()


class Guardian:
    """The guardian of one command, which it starts."""

    def __init__(
        self,
        parent: socket.socket,
        group: int,
        inherited: dict[int, Handler],
        command: tuple[str, ...],
    ) -> None:
        self._parent = parent
        self._group = group
        self._ending = False
        # A signal that comes now waits until the command can have it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, inherited)
        guardian, self._command = os.getpid(), os.fork()
        if self._command == 0:
            become(command, group, guardian, inherited, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self) -> None:
        """Exit when the command has ended; when all has, if ``locks run`` is gone."""
        status = 128 + signal.SIGKILL
        while True:
            try:
                pid, ended = os.waitpid(-1, 0)
            except ChildProcessError:
                os._exit(status)
            if pid == self._command:
                code = os.waitstatus_to_exitcode(ended)
                status = code if code >= 0 else 128 - code
                if not self._ending:
                    os._exit(status)

    def _listen(self) -> None:
        while True:
            try:
                said = self._parent.recv(1)
            except OSError:
                said = b""
            if not said or said[0] == signal.SIGKILL:
                break
            try:
                os.kill(self._command, said[0]) if self._group else os.killpg(0, said[0])
            except OSError:
                pass
        self._ending = True
        while True:
            self._kill()
            time.sleep(BETWEEN)

    def _kill(self) -> None:
        """Kill the children. Theirs become ours, and are killed the next time."""
        found = children()
        if found is None:
            os.kill(self._command, signal.SIGKILL) if self._group else os.killpg(0, signal.SIGKILL)
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # Another user's: its end is waited for.


def become(
    command: tuple[str, ...],
    group: int,
    guardian: int,
    inherited: dict[int, Handler],
    before: Iterable[int],
) -> None:
    """Become the command, in a forked child."""
    try:
        if group:
            os.setpgid(0, group)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guardian:
                os._exit(1)
        for number, handler in inherited.items():
            ignored = handler == signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        for name in RESET_BY_PYTHON:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def children() -> list[int] | None:
    """The guardian's children, those that have ended included; None where /proc does not say."""
    me, found = str(os.getpid()).encode(), []
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    if str(os.getpid()) not in pids:
        return None
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = file.read().rpartition(b")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if parent == me:
            found.append(int(pid))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
