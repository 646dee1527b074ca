"""A command that runs under a lease: its guardian, its signals, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from .._engine.lease import Lease
from .._engine.service import LockService, locks
from .._values.processes import group_lives
from ..exceptions import TaskLockError
from ..signals import lock_lost
from .guardian import KILL_PAUSE_SECONDS, START_BYTE, STOP_BYTE

__all__ = ["LeasedProcess"]

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
LEASE_CHECK_SECONDS = 1.0
"""between two questions to the store whether the lock is still ours: a renewal would see a clear
only after a third of the ttl"""
LONGEST_SLEEP_SECONDS = 3600.0
"""between two looks at a lease that lasts longer"""

GUARDIAN = Path(__file__).with_name("guardian.py")


class LeasedProcess:
    """The process of the command, from before the lease until its end.

    ``command`` is Django's, for its output. When the lease is lost the process and all that it has
    started get SIGTERM, and SIGKILL ``kill_after`` seconds later. ``spare``: None, or the seconds
    that are to be left of the lease at the SIGKILL; then they get the SIGTERM so much earlier,
    while the process still has the lock.
    """

    _guardian: subprocess.Popen[bytes]
    _control: socket.socket

    stopped = False
    """whether the process was ended because of its lease"""
    end_signal: int | None = None
    """the last signal that asked this process to end"""

    def __init__(self, command: BaseCommand, kill_after: float, spare: float | None = None) -> None:
        self._command = command
        self._kill_after = kill_after
        self._spare = spare or 0.0
        self._stop_at = 0.0 if spare is None else kill_after + spare
        self._started = False
        self._ended = threading.Event()
        self._woken = threading.Event()
        # On a terminal, Ctrl-C reaches everything in the foreground. Elsewhere the command has its
        # own process group, so that signals reach its children too.
        self._own_group = not os.isatty(0)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass signals on to the command while the block runs."""
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

    @contextmanager
    def guardian(self, argv: list[str]) -> Iterator[int]:
        """Start the guardian of the command ``argv``; yield its process group.

        The guardian starts before the lease is taken, because the lease records the group.
        """
        group = 0 if self._own_group else os.getpgrp()
        self._command.stdout.flush()
        self._control, theirs = socket.socketpair()
        with self._control:
            with theirs:
                number = theirs.fileno()
                self._guardian = subprocess.Popen(
                    [sys.executable, "-I", "-S", GUARDIAN, str(number), str(group), *argv],
                    pass_fds=[number],
                )
            try:
                yield self._guardian.pid
            finally:
                self.end()

    def run(self, lease: Lease) -> int:
        """Run the command, and stop it and all that it has started when the lease is lost.

        Returns its exit status, or 128 + the signal that ended it; after a stop not before the last
        of them has ended.
        """
        self._started = True
        self._send(START_BYTE)
        threading.Thread(target=self._wait, name="tasklock-run", daemon=True).start()
        threading.Thread(target=self._look, args=(lease,), daemon=True).start()
        while not self._ended.is_set() and (left := lease.remaining - self._stop_at) > 0:
            self._woken.wait(min(left + 0.01, LONGEST_SLEEP_SECONDS))
            if not self._ended.is_set():
                self._woken.clear()
        if not self._ended.is_set():
            self._stop(lease)
        self._ended.wait()
        code = self._guardian.returncode
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Kill what still runs, and wait for its end.

        The guardian kills it when this end of the socket is closed.
        """
        self._control.close()
        self._guardian.wait()

    def _stop(self, lease: Lease) -> None:
        self.stopped = True
        what = "cannot be renewed" if lease.held else "was lost"
        self._command.stderr.write(f"{lease.name} {what}: the command gets SIGTERM.")
        self._send(STOP_BYTE)
        left = lease.remaining - self._spare
        if not self._ended.wait(min(self._kill_after, left) if left > 0 else self._kill_after):
            self._send(signal.SIGKILL)

    def _wait(self) -> None:
        if self._guardian.wait() < 0:
            # The guardian itself was killed, and the command has died with it.
            group = self._guardian.pid
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
            while group_lives(group):
                time.sleep(KILL_PAUSE_SECONDS)
        self._ended.set()
        self._woken.set()

    def _look(self, lease: Lease) -> None:
        service = locks.using(lease.store)
        while not self._ended.wait(LEASE_CHECK_SECONDS) and lease.held:
            with suppress(TaskLockError):
                info = service.get(lease.name)
                if info is None or info.token != lease.token:
                    lease.extend()  # which marks the lease as lost

    def _lost(self, sender: type[LockService], **_: Any) -> None:
        self._woken.set()

    def _pass_on(self, number: int, _frame: Any) -> None:
        if not self._started:
            sys.exit(128 + number)
        if number in ENDING:
            self.end_signal = number
        if self._own_group or number not in (signal.SIGINT, signal.SIGQUIT):
            self._send(number)

    def _send(self, number: int) -> None:
        with suppress(OSError):  # The guardian may have ended.
            self._control.send(bytes([number]))
