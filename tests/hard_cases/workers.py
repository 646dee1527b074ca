"""Real ``celery worker`` processes: started, signalled and ended by their process id."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from example_project.die_with_parent import die_with_parent
from tests.hard_cases import ledger
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0  # seconds a worker may need to come up on a loaded machine


class Worker:
    """One worker: a process group of its own, its output in a file."""

    def __init__(
        self,
        name: str,
        log: Path,
        environment: dict[str, str],
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        options: tuple[str, ...] = (),
        machine: str | None = None,
        app: str = "tests.hard_cases.app",
        host: str = "hard",
        by_parent: bool = False,
    ) -> None:
        """``by_parent``: it is ended when the process that started it dies."""
        self.name = name
        self.log = log
        command = [
            *(elsewhere(machine, log.with_suffix(".boot")) if machine else []),
            *(sys.executable, "-m", "celery", "-A", app, "worker"),
            *("-P", pool, "-c", str(concurrency), "-n", f"{name}@{host}", "-l", "INFO"),
            *("--without-gossip", "--without-mingle", *options),
        ]
        if by_parent:
            command = die_with_parent(command)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wrapped = machine is not None

    def wait_ready(self) -> Worker:
        """Return once the worker says that it is ready."""
        until(
            lambda: self.process.poll() is not None or " ready." in self.text(),
            f"{self.name} ready",
            START_SECONDS,
        )
        assert self.process.poll() is None, f"{self.name} ended early:\n{self.text()}"
        return self

    def text(self) -> str:
        """What the worker has printed."""
        return self.log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The main process."""
        if self._wrapped:
            return until(lambda: children(self.process.pid), "the main process", START_SECONDS)[0]
        return self.process.pid

    @property
    def children(self) -> list[int]:
        """The pool's processes."""
        return children(self.pid)

    @property
    def running(self) -> bool:
        """Whether the main process is there."""
        return self.process.poll() is None

    def send(self, signum: int) -> None:
        """Send a signal to the main process alone."""
        os.kill(self.pid, signum)

    def stop(self, signum: int = signal.SIGTERM, within: float = 30.0) -> None:
        """Ask the worker to stop, wait for it, and end what is left of its group."""
        if self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.send(signum)
                self.process.wait(within)
        self.end()

    def end(self) -> None:
        """SIGKILL the whole group and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def children(pid: int) -> list[int]:
    """The living children of a process, oldest first."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split() if gone(int(word)) is False]


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    return _state(pid) in "ZX"


def stopped(pid: int) -> bool:
    """Whether the process has got a SIGSTOP, and no SIGCONT since."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def watch(pid: int, book: Path) -> threading.Thread:
    """Write a ``death`` entry to the ledger at the moment the process dies."""
    handle: int | None = None
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)

    def wait() -> None:
        if handle is not None:
            news = select.poll()  # select() cannot wait for a number above 1023.
            news.register(handle, select.POLLIN)
            news.poll(120_000)
        at = time.monotonic()
        if handle is not None:
            os.close(handle)
        if gone(pid):
            ledger.append(book, "death", at=at, of=pid)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def kill(pid: int, book: Path) -> float:
    """SIGKILL one process and wait for its death, which is put into the ledger.

    Returns the time of the signal.
    """
    death = watch(pid, book)
    at = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    death.join(10)
    return at


def elsewhere(machine: str, boot: Path) -> list[str]:
    """A command prefix: what follows runs on "another machine".

    It has a process namespace, a host name and a boot id of its own, so that nobody there can ask
    whether a process of this machine still lives.
    """
    boot.write_text("00000000-0000-4000-8000-000000000001\n")
    script = (
        f"hostname {machine} && mount --bind {boot} /proc/sys/kernel/random/boot_id "
        '&& exec "$0" "$@"'
    )
    return [
        *("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--uts", "--kill-child"),
        *("sh", "-c", script),
    ]


def elsewhere_works(folder: Path) -> bool:
    """Whether this system lets us make another machine."""
    try:
        command = [*elsewhere("probe", folder / "probe.boot"), "true"]
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
