"""Real ``celery worker`` and ``celery beat``: started, signalled and ended by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from example_project.processes import PROJECT as ROOT
from example_project.processes import Process
from tests.waiting import until

__all__ = [
    "AS_ROOT", "ROOT", "Worker", "beat", "children", "elsewhere", "elsewhere_works", "gone", "kill",
]  # fmt: skip

CELERY = (sys.executable, "-m", "celery", "-A", "tests.stage.app")
AS_ROOT = {"C_FORCE_ROOT": "1"}
"""Without it, Celery unpickles nothing for root."""
START_SECONDS = 90.0  # seconds a worker may need to come up on a loaded machine


class Worker(Process):
    """One worker: a process group of its own, its output in a file."""

    def __init__(
        self,
        name: str,
        log: Path,
        environment: Mapping[str, str],
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        options: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
    ) -> None:
        """``prefix``: what the command begins with."""
        super().__init__(
            name,
            [
                *(*prefix, *CELERY, "worker", "-l", "INFO", "-n", f"{name}@hard"),
                *("-P", pool, "-c", str(concurrency)),
                *("--without-gossip", "--without-mingle", *options),
            ],
            log,
            environment,
        )

    def wait_ready(self) -> Worker:
        until(
            lambda: not self.running or " ready." in self.text(), f"{self.name} ready",
            START_SECONDS,
        )  # fmt: skip
        assert self.running, f"{self.name} ended early:\n{self.text()}"
        return self

    @property
    def children(self) -> list[int]:
        return children(self.pid)

    @property
    def running(self) -> bool:
        return self.exit_status is None

    def send(self, *signals: int) -> None:
        """Send signals to the main process alone, each when the one before has arrived."""
        for number, signum in enumerate(signals):
            if number:
                until(lambda: "Warm shutdown" in self.text(), "the first signal arrived", 10)
            os.kill(self.pid, signum)

    def stop(self, *signals: int) -> None:
        self.send(*signals)
        until(lambda: not self.running, f"{self.name} has stopped", 60)


@contextlib.contextmanager
def beat(environment: Mapping[str, str], folder: Path, *options: str) -> Iterator[Path]:
    """A ``celery beat`` beside the workers; yields its log."""
    log = folder / "beat.log"
    schedule = f"--schedule={folder / 'schedule'}"
    command = [*CELERY, "beat", "-l", "INFO", "--pidfile=", schedule, *options]
    process = Process("beat", command, log, environment)
    try:
        yield log
    finally:
        # Beat ends by an exception from its signal handler. Python drops that in a finalizer, and
        # Celery's `AsyncResult.__del__` is one that asks the backend: so it may have to be told
        # again.
        for _ in range(10):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
                break
        process.end()
    assert process.exit_status != -signal.SIGKILL, "beat did not end after ten SIGTERM"


def children(pid: int) -> list[int]:
    """The living children of a process, oldest first."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split() if not gone(int(word))]


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def kill(pid: int) -> float:
    """SIGKILL one process and wait for its death. Returns the time of the signal."""
    at = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), f"the death of {pid}")
    return at


def elsewhere(folder: Path) -> tuple[str, ...]:
    """What a command begins with that runs on "another machine".

    It has a process namespace, a host name and a boot id of its own, so that nobody there can ask
    whether a process of this machine still lives.
    """
    boot = folder / "boot"
    boot.write_text("00000000-0000-4000-8000-000000000001\n")
    new = f"hostname elsewhere && mount --bind {boot} /proc/sys/kernel/random/boot_id"
    return (
        *("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--uts", "--kill-child"),
        *("sh", "-c", f'{new} && exec "$0" "$@"'),
    )


def elsewhere_works(folder: Path) -> bool:
    """Whether this system lets us make another machine."""
    try:
        command = [*elsewhere(folder), "true"]
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
