"""Starting the site's own processes, and ending every one of them again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from example_project.die_with_parent import die_with_parent
from example_project.redis_binary import NoRedis

PROJECT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 10.0


class NotReady(Exception):
    """A process did not come up; the message ends with what its log says."""


class Process:
    """A child process in a group of its own, writing to a log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                die_with_parent(command, by=signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                env=environment,
                # Ctrl-C on the terminal is ours alone; we pass it on in our own way.
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def wait(self, seconds: float) -> int:
        return self._popen.wait(seconds)

    def terminate(self) -> None:
        """Ask it to end: a Celery worker finishes what it is doing."""
        if self.exit_status is None:
            self._popen.terminate()

    def end(self, grace: float = 0.0) -> None:
        """Wait `grace` seconds for it to end, then kill what is left of its group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, grace))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def last_lines(self, count: int = 15) -> str:
        return "\n".join(self.text().splitlines()[-count:])


@contextlib.contextmanager
def ending(processes: Sequence[Process], *, grace: float = STOP_SECONDS) -> Iterator[None]:
    """End all of `processes` after the block, however it ends.

    Args:
        grace: seconds they get, together, to end by themselves; a tenth of it after an exception.
    """
    try:
        yield
    except BaseException:
        grace /= 10
        raise
    finally:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + grace
        for process in processes:
            process.end(deadline - time.monotonic())


def until_interrupted(work: Callable[[], int], *, status: int) -> int:
    """The exit status of what a program does: ``status`` if it was told to end, 1 if it could not
    begin."""
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.default_int_handler)
    try:
        return work()
    except (NoRedis, NotReady) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Nothing is left running.", file=sys.stderr)
        return status


def start_worker(name: str, logs: Path, *, concurrency: int = 2) -> Process:
    """Start ``celery -A example_project worker`` with a prefork pool."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "example_project", "worker"),
        *("--pool", "prefork", "--concurrency", str(concurrency)),
        *("--hostname", name, "--loglevel", "INFO", "--without-mingle", "--without-gossip"),
    ]
    return Process(name, command, logs / f"{name}.log")


def wait_for_workers(workers: Sequence[Process], seconds: float = START_SECONDS) -> None:
    """Return once every worker answers a ping.

    Raises:
        NotReady: one has ended, or `seconds` have passed.
    """
    from example_project.celery import app

    deadline = time.monotonic() + seconds
    missing = {worker.name: worker for worker in workers}
    while missing:
        for worker in missing.values():
            if worker.exit_status is not None:
                raise NotReady(
                    f"Worker {worker.name} ended with {worker.exit_status}. "
                    f"Its log ends:\n{worker.last_lines()}"
                )
        if time.monotonic() > deadline:
            logs = "\n".join(f"{name}:\n{lost.last_lines()}" for name, lost in missing.items())
            raise NotReady(f"No answer within {seconds:.0f} s. The logs end:\n{logs}")
        answers = app.control.ping(destination=list(missing), timeout=0.5)
        for answer in answers or []:
            for name in answer:
                missing.pop(name, None)
