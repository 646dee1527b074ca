"""Processes of the site that do what an example tells them, all at the same moment.

``python -m example_project.uses.crew`` is such a process: it reads ``[module, function,
arguments]`` a line, as JSON, and writes what the function returned.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import IO, Any, TypeVar

from example_project.die_with_parent import die_with_parent
from example_project.processes import PROJECT, STOP_SECONDS, NotReady

T = TypeVar("T")


@dataclass
class Shown:
    """What an example came to.

    Attributes:
        title: the use, such as "cache stampede".
        found: what was asked for and what happened, counted.
        problems: what went wrong; empty if nothing did.
    """

    title: str
    found: str
    problems: list[str] = field(default_factory=list)


class Member:
    """A process of the crew. One that is killed has no answers."""

    def __init__(self, log: IO[bytes]) -> None:
        self._popen = subprocess.Popen(
            die_with_parent([sys.executable, "-m", "example_project.uses.crew"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=PROJECT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._popen.pid

    def tell(self, module: str, function: str, *arguments: Any) -> None:
        """Have a function of ``example_project.uses.MODULE`` called; see `answer`."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps([module, function, arguments]) + "\n")
        self._popen.stdin.flush()

    def answer(self) -> Any:
        """Wait for what the function returned that was told first."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise NotReady(f"process {self.pid} of an example ended with {self._popen.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL."""
        self._popen.kill()
        self._popen.wait()

    def end(self) -> None:
        """SIGTERM, upon which it releases its locks; SIGKILL if that takes too long."""
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(STOP_SECONDS)
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Crew:
    """The processes of the examples; ``logs`` is where their errors go."""

    def __init__(self, members: list[Member], logs: Path) -> None:
        self.members = members
        self.logs = logs

    def at_once(self, module: str, function: str) -> list[Any]:
        """Have each process call a function, at the same moment. Returns what they returned."""
        for member in self.members:
            member.tell(module, function)
        return [member.answer() for member in self.members]


@contextlib.contextmanager
def crew_of(count: int, logs: Path) -> Iterator[Crew]:
    """So many processes for the time of the block.

    Raises:
        NotReady: one of them has ended; its error is in the log.
    """
    logs.mkdir(parents=True, exist_ok=True)
    members: list[Member] = []
    try:
        with (logs / "examples.log").open("ab") as log:
            members.extend(Member(log) for _ in range(count))
        for member in members:
            member.answer()
        yield Crew(members, logs)
    except NotReady as error:
        said = (logs / "examples.log").read_text()[-2000:]
        raise NotReady(f"{error}. The log ends:\n{said}") from error
    finally:
        for member in members:
            member.end()


def times(count: int) -> str:
    """ "once", "3 times"."""
    return "once" if count == 1 else f"{count} times"


def in_threads(count: int, function: Callable[[int], T]) -> list[T]:
    """Call ``function`` with 0, 1, 2, ... at the same moment, each in a thread."""
    from django.db import connections

    together = Barrier(count)

    def call(number: int) -> T:
        together.wait()
        try:
            return function(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max(count, 1)) as threads:
        return list(threads.map(call, range(count)))


def main() -> None:
    import django

    django.setup()
    # As a process should that holds locks: so they are released, and not only over some time later.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    answers, sys.stdout = sys.stdout, sys.stderr
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        module, function, arguments = json.loads(line)
        called = getattr(importlib.import_module(f"example_project.uses.{module}"), function)
        print(json.dumps(called(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
