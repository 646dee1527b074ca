"""
The process between ``locks run`` and its command, in which this file is the whole program.

When ``locks run`` is killed, its lease is not renewed any more. The guardian then kills the command
and all that it started, and exits after the last of them. Its process group is recorded in the
lease, so no process on this machine takes the lock over before that. When the lease is lost,
``locks run`` has it ask all of them to end, and kill them a little later.

It imports nothing but the standard library: it is started without the site's packages. Arguments:
the number of a socket, the process group that the command joins (0: that of the guardian), and the
command. Each byte from the socket is a signal for the command; but the first one is `START_BYTE`,
and `STOP_BYTE` says that the lease is lost. The end of the stream is the end of ``locks run``.
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

START_BYTE, STOP_BYTE = 0, 255
"""no numbers of signals"""
LEFT_TO_THE_COMMAND = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP")
RESET_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_PAUSE_SECONDS = 0.01
"""between two looks for processes that are still to be killed"""

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
    if first != bytes([START_BYTE]):
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
        self._stopping = False
        # A signal that comes now waits until the command can have it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, inherited)
        guardian, self._command = os.getpid(), os.fork()
        if self._command == 0:
            become(command, group, guardian, inherited, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self) -> None:
        """Exit when the command has ended; when all has, if the lease or ``locks run`` is gone."""
        status = 128 + signal.SIGKILL
        while True:
            try:
                pid, ended = os.waitpid(-1, 0)
            except ChildProcessError:
                if self._stopping and not self._group and sys.platform != "linux":
                    # What the command has left is a child of others. It is in the group of the
                    # guardian, which stays until the SIGKILL for both.
                    threading.Event().wait()
                os._exit(status)
            if pid == self._command:
                code = os.waitstatus_to_exitcode(ended)
                status = code if code >= 0 else 128 - code
                if not self._stopping:
                    os._exit(status)

    def _listen(self) -> None:
        while True:
            try:
                said = self._parent.recv(1)
            except OSError:
                said = b""
            if not said or said[0] == signal.SIGKILL:
                break
            number = said[0]
            if number == STOP_BYTE:
                # First, so that the command's end by the signal is not the guardian's.
                self._stopping, number = True, signal.SIGTERM
            try:
                if self._stopping:
                    self._signal_all(number)
                elif self._group:
                    os.kill(self._command, number)
                else:
                    os.killpg(0, number)
            except OSError:
                pass
        self._stopping = True
        while True:
            self._kill()
            time.sleep(KILL_PAUSE_SECONDS)

    def _signal_all(self, number: int) -> None:
        """Signal the group, and what the command has started outside of it: each process once."""
        found = processes()
        if found is None and self._group:
            os.kill(self._command, number)
            return
        os.killpg(0, number)
        if found is not None:
            # They were looked up first: what loses its parent now was a descendant then.
            group = os.getpid()
            signal_each([pid for pid in descendants(found) if found[pid][1] != group], number)

    def _kill(self) -> None:
        """Kill the children. Grandchildren become children, and are killed the next time."""
        found, me = processes(), os.getpid()
        if found is None:
            os.kill(self._command, signal.SIGKILL) if self._group else os.killpg(0, signal.SIGKILL)
            return
        signal_each([pid for pid, (parent, _) in found.items() if parent == me], signal.SIGKILL)


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


def signal_each(pids: Iterable[int], number: int) -> None:
    """Signal processes; one that has ended, or is another user's, is left."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # Another user's: its end is waited for.


def processes() -> dict[int, tuple[int, int]] | None:
    """The parent and the process group of each process, those that have ended included.

    None where /proc does not say.
    """
    found = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    if os.getpid() not in pids:
        return None
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            found[pid] = (int(fields[1]), int(fields[2]))
        except (OSError, IndexError):
            continue
    return found


def descendants(found: dict[int, tuple[int, int]]) -> set[int]:
    """Those of the processes that descend from the guardian."""
    me = os.getpid()
    family = {me}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return family - {me}


if __name__ == "__main__":
    main(*sys.argv[1:])
