"""``manage.py locks run``: a command under a lock, on whichever host comes first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..describe import printable
from ..exceptions import StoreUnavailable
from ..lease import Lease
from ..service import LockService, locks
from ..signals import lock_lost

__all__ = ["run_command"]

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
LONGEST = 3600.0
"""seconds between two looks at a lease that lasts longer"""

LAUNCHER = """\
import ctypes, os, signal, sys
parent, own_group, *command = sys.argv[1:]
if own_group == "1":
    os.setpgid(0, 0)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)
for name in ("SIGPIPE", "SIGXFSZ"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.stderr.write(f"{command[0]}: {error.strerror}\\n")
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
"""Becomes the command. It dies with its parent: nobody renews the lease any more then, and
another host takes it over from a dead owner at once."""


def run_command(command: BaseCommand, **options: Any) -> None:
    """Exits with the command's own status, or 128 + the signal that ended it."""
    running = _Running(command, options["kill_after"])
    with running.signals():
        lease = _lease(options)
        try:
            status = running.run(lease, options["argv"])
        finally:
            kept = _release(command, lease)
    if not kept:
        # What ran without its lock is never reported as a success.
        raise CommandError(f"{lease.name} was lost while the command ran.", returncode=status or 1)
    sys.exit(status)


def _lease(options: dict[str, Any]) -> Lease:
    program = os.path.basename(options["argv"][0])
    try:
        won = locks.using(options["store"]).contend(
            options["name"],
            ttl=options["ttl"],
            wait=options["wait"],
            renew=True,
            task=f"locks run {program}",
        )
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    if isinstance(won, Lease):
        return won
    code = options["conflict_exit_code"]
    if options["verbosity"] == 0:
        sys.exit(code)
    holder = "other code" if won.token is None else printable(won.owner)
    raise CommandError(f"{won.name} is held by {holder}.", returncode=code)


def _release(command: BaseCommand, lease: Lease) -> bool:
    """Whether the lease was ours to the end."""
    try:
        return lease.release()
    except StoreUnavailable as error:
        command.stderr.write(f"{printable(error)} The lock ends by itself.")
        return lease.held


class _Running:
    """The command as it runs, and what reaches it meanwhile."""

    def __init__(self, command: BaseCommand, kill_after: float) -> None:
        self._command = command
        self._kill_after = kill_after
        self._child: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._woken = threading.Event()
        # A terminal's own keys reach all that runs in its foreground. Elsewhere the command
        # has a group, so that what it starts in turn is reached with it.
        self._own_group = not os.isatty(0)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass signals on, for as long as the block lasts."""
        numbers = [getattr(signal, name) for name in PASSED_ON]
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            # What the caller (nohup, a shell's background) has ignored stays ignored.
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        lock_lost.connect(self._lost)
        try:
            yield
        finally:
            lock_lost.disconnect(self._lost)
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, lease: Lease, argv: list[str]) -> int:
        """Run the command; end it when the lease is lost. Returns its exit status."""
        self._command.stdout.flush()
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        self._child = subprocess.Popen(
            [*launcher, str(os.getpid()), str(int(self._own_group)), *argv]
        )
        threading.Thread(target=self._wait, name="tasklock-run", daemon=True).start()
        while not self._ended.is_set() and lease.held:
            self._woken.wait(min(lease.remaining + 0.01, LONGEST))
            if not self._ended.is_set():
                self._woken.clear()
        if not self._ended.is_set():
            self._stop(lease)
        self._ended.wait()
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def _stop(self, lease: Lease) -> None:
        self._command.stderr.write(f"{lease.name} was lost: the command is told to end.")
        self._send(signal.SIGTERM)
        if not self._ended.wait(self._kill_after):
            self._send(signal.SIGKILL)

    def _wait(self) -> None:
        assert self._child is not None
        self._child.wait()
        self._ended.set()
        self._woken.set()

    def _lost(self, sender: type[LockService], **_: Any) -> None:
        self._woken.set()

    def _pass_on(self, number: int, _frame: Any) -> None:
        if self._child is None:
            sys.exit(128 + number)
        if self._own_group or number not in (signal.SIGINT, signal.SIGQUIT):
            self._send(number)

    def _send(self, number: int) -> None:
        assert self._child is not None
        if self._child.returncode is not None:
            return
        pid = self._child.pid
        try:
            # Before it has its group, it is the launcher alone.
            group = self._own_group and os.getpgid(pid) == pid
            os.killpg(pid, number) if group else os.kill(pid, number)
        except ProcessLookupError:
            pass
