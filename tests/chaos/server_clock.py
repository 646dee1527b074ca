"""The wall clock of the servers of a run, which the conductor may set."""

from __future__ import annotations

import shlex
import shutil
import struct
import subprocess
from pathlib import Path

__all__ = ["ServerClock"]

SOURCE = Path(__file__).with_suffix(".c")


class ServerClock:
    """The seconds by which servers that `binary` starts see the time wrong.

    Args:
        folder: where the library and the seconds are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._library = folder / "server_clock.so"
        self._seconds = folder / "server_clock"
        self.can_step = self._is_built()
        """False: there is no C compiler"""
        self._wrong_by = 0
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock forward, or back, by so much."""
        self._wrong_by += seconds
        with self._seconds.open("r+b" if self._seconds.exists() else "wb") as file:
            file.write(struct.pack("=q", self._wrong_by))

    def binary(self, server: Path) -> Path:
        """What to start in the place of the server's binary."""
        if not self.can_step:
            return server
        script = self._library.with_suffix(".sh")
        quoted = [shlex.quote(str(path)) for path in (self._library, self._seconds, server)]
        script.write_text('#!/bin/sh\nLD_PRELOAD={} SERVER_CLOCK={} exec {} "$@"\n'.format(*quoted))
        script.chmod(0o755)
        return script

    def _is_built(self) -> bool:
        compiler = shutil.which("cc")
        if compiler is None:
            return False
        command = [compiler, "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(self._library)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
