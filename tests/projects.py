"""Django projects in a folder of their own, as ``django-admin startproject`` makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = {
    "python": [sys.executable],
    "celery": [sys.executable, "-m", "celery"],
    "django-admin": [sys.executable, "-m", "django"],
}


class Project:
    """A folder in which commands run as they would in a shell of somebody who is new there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = ("DJANGO_", "EXAMPLE_", "TASKLOCK_", "CELERY_", "PYTHONPATH")
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(ours)
        } | {"PYTHONUNBUFFERED": "1"}

    def write(self, path: str, text: str, *, append: bool = False) -> None:
        """Write a file, or put the text at its end."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a" if append else "w", encoding="utf-8") as opened:
            opened.write(text)

    def run(self, *command: str, fails: bool = False) -> str:
        """Run a command to its end. Returns all that it printed."""
        done = subprocess.run(
            self._found(command), cwd=self.folder, env=self.environment, text=True, timeout=120,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, done.stdout
        return done.stdout

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a command that stays, in a process group of its own, with its output in a file."""
        with (self.folder / log).open("wb") as output:
            return subprocess.Popen(
                self._found(command), cwd=self.folder, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _found(self, command: tuple[str, ...]) -> list[str]:
        return [*PROGRAMS[command[0]], *command[1:]]
