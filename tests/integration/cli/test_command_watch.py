"""``manage.py locks list --watch`` on a terminal: one table, that changes in its place."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import UseRedis
from tests.steps import taken
from tests.waiting import PATIENCE

WATCH = ["locks", "list", "--watch", "0.2"]
UP = "\x1b[1A"
"""the cursor goes up a line, over what was drawn before"""
WITHOUT_RICH = (
    "import sys; sys.modules['rich'] = sys.modules['rich.console'] = None; "
    "from django.core.management import execute_from_command_line as run; "
    f"run(['manage.py', *{WATCH}])"
)


class Terminal:
    """A program on a pseudo-terminal, and all that it has drawn."""

    def __init__(self, env: dict[str, str], *command: str) -> None:
        self._master, slave = pty.openpty()
        env = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color", **env}
        self.process = subprocess.Popen(
            [sys.executable, *command], env=env, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        self._drawn = b""

    @property
    def drawn(self) -> str:
        return self._drawn.decode()

    def until(self, condition: Callable[[str], bool], within: float = 3 * PATIENCE) -> None:
        """Read on until what was drawn from now on fulfils the condition."""
        start, deadline = len(self._drawn), time.monotonic() + within
        while not condition(self._drawn[start:].decode(errors="replace")):
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"not within {within} s: {self._drawn!r}"
            self._read()

    def _read(self) -> None:
        self._drawn += os.read(self._master, 65536)

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            while True:
                self._read()
        except OSError:  # Linux's way to say that the other end was closed
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(use_redis: UseRedis, process_env: Callable[[], dict[str, str]]) -> Iterator[Open]:
    use_redis()
    opened: list[Terminal] = []

    def open_(*command: str, **env: str) -> Terminal:
        opened.append(Terminal(process_env() | env, *command))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_table_changes_in_its_place(terminal: Open) -> None:
    screen = terminal("-m", "django", *WATCH)
    screen.until(lambda drawn: "No locks" in drawn)
    lease = taken("video:123")
    screen.until(lambda drawn: "video:123" in drawn and "─" in drawn)
    # Drawn anew over the table, which has a headline, a rule and a row at least
    screen.until(lambda drawn: UP * 3 in drawn.replace("\x1b[2K", "") and "video:123" in drawn)
    lease.release()
    screen.until(lambda drawn: "No locks" in drawn)
    assert screen.interrupt() == 0
    assert "Traceback" not in screen.drawn
    assert screen.drawn.rindex("\x1b[?25h") > screen.drawn.rindex("\x1b[?25l"), "no cursor left"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("command", "term"),
    [(["-m", "django", *WATCH], "dumb"), (["-c", WITHOUT_RICH], "xterm-256color")],
    ids=["dumb-terminal", "without-rich"],
)
def test_lines_follow_each_other_where_nothing_can_be_drawn_over(
    terminal: Open, command: list[str], term: str
) -> None:
    screen = terminal(*command, TERM=term)
    screen.until(lambda drawn: drawn.count("No locks.\r\n") >= 2)
    assert screen.interrupt() == 0
    assert "\x1b" not in screen.drawn
