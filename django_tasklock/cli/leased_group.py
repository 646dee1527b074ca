"""A command, and all of its process group, under a lease."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .._engine.lease import Lease
from .._engine.service import LockService, locks
from .._values.processes import group_lives
from ..exceptions import TaskLockError
from ..signals import lock_lost
from .group_leader import PASSED_ON

__all__ = ["LeasedGroup"]

LOOK_SECONDS = 0.05  # between two looks whether the group has ended
LONGEST_WAIT_SECONDS = 3600.0  # Some systems cannot wait for years.
LEASE_CHECK_SECONDS = 1.0  # a renewal would see a clear only after a third of the ttl


class LeasedGroup:
    """The process group of a command, from before the lease until its end.

    When the lease is lost, or cannot be renewed ``spare`` seconds before its end, the group gets
    SIGTERM, and ``kill_after`` seconds later SIGKILL.
    """

    stopped = False
    """whether the group was ended because of its lease"""
    end_signal: int | None = None
    """the last signal that asked this process to end"""

    def __init__(self, kill_after: float, spare: float = 0.0) -> None:
        self._kill_after = kill_after
        self._spare = spare
        self._started = False
        self._woken = threading.Event()
        self._number = 0

    @contextmanager
    def of(self, argv: list[str]) -> Iterator[int]:
        """Have the group of the command ready, and pass signals on to it. Yields its number.

        The group is there before the lease is taken, because the lease records it.
        """
        reading, writing = os.pipe()
        self._pipe = io.FileIO(writing, "w")
        leader = Path(__file__).with_name("group_leader.py")
        self._leader = subprocess.Popen(
            [sys.executable, "-I", "-S", leader, str(reading), *argv],
            pass_fds=[reading],
            start_new_session=True,
        )
        os.close(reading)
        self._number = self._leader.pid
        numbers = [getattr(signal, name) for name in PASSED_ON]
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            # What the caller (nohup, a shell's background) has ignored stays ignored.
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        lock_lost.connect(self._lost)
        try:
            yield self._number
        finally:
            self.kill()
            lock_lost.disconnect(self._lost)
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, lease: Lease) -> int:
        """Run the command, and end the group when the lease is lost.

        Returns the command's exit status, or 128 + the signal that ended it; after a loss not
        before the last process of the group has ended.
        """
        self._started = True
        self._pipe.write(b"1")
        # Each in a thread: the store may be silent, and the command is to be told in time.
        for watch in (self._wait_for_the_end, self._look_for_a_clear):
            threading.Thread(target=watch, args=(lease,), daemon=True).start()
        while self._leader.poll() is None and (left := lease.remaining - self._spare) > 0:
            self._woken.wait(min(left + 0.01, LONGEST_WAIT_SECONDS))
            self._woken.clear()
        if self._leader.poll() is None:
            self._end(lease)
        code = self._leader.wait()
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kill what still runs, unless the command has ended by itself, and wait for its end."""
        if self._pipe.closed:
            return  # That was done; by now the system may have given the number to another group.
        # Below 0: the leader itself was killed, and has left its command.
        if self.stopped or self._leader.poll() is None or self._leader.returncode < 0:
            self._signal(signal.SIGKILL)
            while self._lives():
                time.sleep(LOOK_SECONDS)
        self._pipe.close()

    def _end(self, lease: Lease) -> None:
        self.stopped = True
        what = "cannot be renewed" if lease.held else "was lost"
        with suppress(OSError, ValueError):  # stderr may be full, or closed.
            sys.stderr.write(f"{lease.name} {what}: the command gets SIGTERM.\n")
            sys.stderr.flush()
        self._signal(signal.SIGTERM)
        left = lease.remaining or self._kill_after
        deadline = time.monotonic() + min(self._kill_after, left)
        while self._lives() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self.kill()

    def _lives(self) -> bool:
        return self._leader.poll() is None or bool(group_lives(self._number))

    def _wait_for_the_end(self, _lease: Lease) -> None:
        self._leader.wait()
        self._woken.set()

    def _look_for_a_clear(self, lease: Lease) -> None:
        service = locks.using(lease.store)
        while self._leader.poll() is None and lease.held:
            with suppress(TaskLockError):
                info = service.get(lease.name)
                if info is None or info.token != lease.token:
                    lease.extend()  # which marks the lease as lost
            time.sleep(LEASE_CHECK_SECONDS)

    def _lost(self, sender: type[LockService], **_: Any) -> None:
        self._woken.set()

    def _pass_on(self, number: int, _frame: Any) -> None:
        if not self._started:
            sys.exit(128 + number)
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self.end_signal = number
        self._signal(number)

    def _signal(self, number: int) -> None:
        if self._lives():
            with suppress(OSError):  # It has ended just now.
                os.killpg(self._number, number)
