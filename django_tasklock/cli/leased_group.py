"""The process group of ``locks run`` and ``locks lead``: it runs while the lease lasts."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._engine.lease import Lease
from .._values import clock
from .._values.processes import group_lives
from .._values.words import printable
from ..exceptions import StoreUnavailable
from .group_leader import handle_signals, say

LOOK_SECONDS = 0.05  # between two looks whether the group has ended
LEASE_LOOK_SECONDS = 1.0  # between two looks whether the lease is lost


class LeasedGroup:
    """The process group of a command, from before the lease until its end.

    When the lease is lost, or cannot be renewed ``spare`` seconds before its end, the group gets
    SIGTERM, and ``kill_after`` seconds later SIGKILL: with ``spare`` before the end of the lease.
    """

    stopped = False  # Whether the group was ended because of its lease.
    kept = False  # Whether the lease was held to the end of the command.
    end_signal: int | None = None  # The last signal that asked this process to end.
    _lease: Lease | None = None

    def __init__(self, argv: list[str], kill_after: float, spare: float = 0.0) -> None:
        """Have the group of the command ready, and pass signals on to it."""
        self._kill_after = kill_after
        self._spare = spare
        # Each side sees the end of the other one.
        self._link, theirs = socket.socketpair()
        leader = Path(__file__).with_name("group_leader.py")
        self._leader = subprocess.Popen(
            [sys.executable, "-I", "-S", leader, str(theirs.fileno()), *argv],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        handle_signals(self._pass_on)

    def run(self, acquire: Callable[..., Lease]) -> int:
        """Acquire the lease, run the command while it lasts, and release it.

        ``acquire`` gets the ``group``'s number: the group is there before, because the lease
        records it. Returns the command's exit status, or 128 + the signal that ended it; after a
        loss not before the last process of the group has ended. Raises what ``acquire`` raises.
        """
        try:
            lease = self._lease = acquire(group=self._leader.pid)
            self._link.send(b"1")
            while self._leader.poll() is None and (left := lease.remaining - self._spare) > 0:
                select.select([self._link], [], [], min(left + 0.01, LEASE_LOOK_SECONDS))
            if self._leader.poll() is None:
                self._end(lease)
            code = self._leader.wait()
            lease.end_block(failed=code != 0)
        finally:
            self._kill()
            if self._lease is not None:
                self._release(self._lease)
                self._lease = None
        return code if code >= 0 else 128 - code

    def _end(self, lease: Lease) -> None:
        self.stopped = True
        what = "cannot be renewed" if lease.held else "was lost"
        say(f"The lock {lease.name} {what}: the command gets SIGTERM.")
        self._signal(signal.SIGTERM)
        deadline = clock.now() + self._kill_after
        if self._spare:  # Before the lease is over, also if this process was stopped for a while.
            deadline = min(deadline, lease._own.until)
        while self._lives() and clock.now() < deadline:
            time.sleep(LOOK_SECONDS)
        self._kill()

    def _kill(self) -> None:
        """Kill what still runs, unless the command has ended by itself, and wait for its end."""
        if self._link.fileno() < 0:
            return  # That was done; by now the system may have given the number to another group.
        # Below 0: the leader itself was killed, and has left its command.
        if self.stopped or self._leader.poll() is None or self._leader.returncode < 0:
            self._signal(signal.SIGKILL)
            while self._lives():
                time.sleep(LOOK_SECONDS)
        self._link.close()

    def _release(self, lease: Lease) -> None:
        held = lease.held
        try:
            self.kept = lease.release()
        except StoreUnavailable as error:
            self.kept = held and clock.now() < lease._own.until
            say(f"The lock was not released; it ends by itself: {printable(error)}")

    def _lives(self) -> bool:
        return self._leader.poll() is None or bool(group_lives(self._leader.pid))

    def _pass_on(self, number: int, _frame: Any) -> None:
        if self._lease is None:
            sys.exit(128 + number)
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self.end_signal = number
        if self._link.fileno() >= 0:
            self._signal(number)

    def _signal(self, number: int) -> None:
        if self._lives():
            with suppress(OSError):  # It has ended just now.
                os.killpg(self._leader.pid, number)
