"""``manage.py locks run``: a command under a lock."""

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

from django.core.management.base import BaseCommand, CommandError

from ..describe import printable
from ..exceptions import StoreUnavailable, TaskLockError
from ..lease import Lease
from ..owner import group_lives
from ..service import LockService, locks
from ..signals import lock_lost
from .guardian import BETWEEN, START

__all__ = ["run_command"]

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
OUTAGE, HELD_ELSEWHERE, LOST = 69, 75, 77
"""exit statuses beside the command's own: the store did not answer, and nothing was run; somebody
else holds the lock, and nothing was run; the lock was lost while the command ran. In sysexits.h
they are EX_UNAVAILABLE, EX_TEMPFAIL (try again later) and EX_NOPERM."""
LOOK = 1.0
"""seconds between two looks at whether the lock is still ours: a renewal would see a clear after
a third of the ttl"""
LONGEST = 3600.0
"""seconds between two looks at a lease that lasts longer"""

GUARDIAN = Path(__file__).with_name("guardian.py")


def run_command(command: BaseCommand, **options: Any) -> None:
    """Exits with the command's own status, 128 + the signal that ended it, or one of ours."""
    running = _Running(command, options["kill_after"])
    with running.signals(), running.guardian(options["argv"]) as group:
        lease = _lease(options, group)
        try:
            status = running.run(lease)
        finally:
            running.end()
            kept = _release(command, lease)
    if not kept:
        # What ran without its lock is never reported as a success.
        raise CommandError(f"{lease.name} was lost while the command ran.", returncode=LOST)
    sys.exit(status)


def _lease(options: dict[str, Any], group: int) -> Lease:
    program = os.path.basename(options["argv"][0])
    try:
        won = locks.using(options["store"]).contend(
            options["name"],
            ttl=options["ttl"],
            wait=options["wait"],
            renew=True,
            task=f"locks run {program}",
            group=group,
        )
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    except StoreUnavailable as error:
        raise CommandError(printable(error), returncode=OUTAGE) from error
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

    _guardian: subprocess.Popen[bytes]
    _control: socket.socket

    def __init__(self, command: BaseCommand, kill_after: float) -> None:
        self._command = command
        self._kill_after = kill_after
        self._started = False
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

    @contextmanager
    def guardian(self, argv: list[str]) -> Iterator[int]:
        """Have a guardian ready to start the command; the block gets its process group.

        The guardian comes before the lease, whose record says the group.
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
        """Run the command; end it when the lease is lost. Returns its exit status."""
        self._started = True
        self._send(START)
        threading.Thread(target=self._wait, name="tasklock-run", daemon=True).start()
        threading.Thread(target=self._look, args=(lease,), daemon=True).start()
        while not self._ended.is_set() and lease.held:
            self._woken.wait(min(lease.remaining + 0.01, LONGEST))
            if not self._ended.is_set():
                self._woken.clear()
        if not self._ended.is_set():
            self._stop(lease)
        self._ended.wait()
        code = self._guardian.returncode
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """End whatever still runs: as soon as the guardian sees that we are gone, it does."""
        self._control.close()
        self._guardian.wait()

    def _stop(self, lease: Lease) -> None:
        self._command.stderr.write(f"{lease.name} was lost: the command is told to end.")
        self._send(signal.SIGTERM)
        if not self._ended.wait(self._kill_after):
            self._send(signal.SIGKILL)

    def _wait(self) -> None:
        if self._guardian.wait() < 0:
            # The guardian itself was killed, and the command has died with it.
            group = self._guardian.pid
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
            while group_lives(group):
                time.sleep(BETWEEN)
        self._ended.set()
        self._woken.set()

    def _look(self, lease: Lease) -> None:
        service = locks.using(lease.store)
        while not self._ended.wait(LOOK) and lease.held:
            with suppress(TaskLockError):
                info = service.get(lease.name)
                if info is None or info.token != lease.token:
                    lease.extend()  # which says, once for all, that it is lost

    def _lost(self, sender: type[LockService], **_: Any) -> None:
        self._woken.set()

    def _pass_on(self, number: int, _frame: Any) -> None:
        if not self._started:
            sys.exit(128 + number)
        if self._own_group or number not in (signal.SIGINT, signal.SIGQUIT):
            self._send(number)

    def _send(self, number: int) -> None:
        with suppress(OSError):  # The guardian may have ended.
            self._control.send(bytes([number]))
