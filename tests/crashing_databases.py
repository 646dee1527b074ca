"""Database servers of a test's own, which it may kill and start again on the same data."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests import needs
from tests.servers import free_port, start_process

START_SECONDS = 60.0


class CrashingDatabase(ABC):
    """A server that runs.

    Args:
        folder: for its data; the server's user owns it.
        port: on loopback.
    """

    user: str
    """whose process the server is where this process is root's, which servers refuse to be"""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def own(cls) -> Iterator[CrashingDatabase]:
        """A server for the time of the block; its data is deleted afterwards."""
        with tempfile.TemporaryDirectory(prefix="tasklock-database-") as name:
            server = cls(Path(name), free_port())
            if os.geteuid() == 0:
                try:
                    shutil.chown(name, server.user)
                except LookupError:
                    needs.missing(
                        f"there is no user {server.user}, and root may not run the server"
                    )
            server.initialise()
            try:
                server.start()
                yield server
            finally:
                server.kill()

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """As in DATABASES."""

    @abstractmethod
    def initialise(self) -> None:
        """Make the data's folder; skip the test where the server is not installed."""

    @abstractmethod
    def command(self) -> list[str]:
        """What starts the server in the foreground."""

    @abstractmethod
    def connect(self) -> None:
        """Connect once; raises an exception of the driver while the server does not answer."""

    def start(self) -> None:
        """Start it, and wait until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with tempfile.TemporaryFile() as output:
                self._process = start_process([*self._as_user(), *self.command()], output)
                while self._process.poll() is None and time.monotonic() < deadline:
                    with contextlib.suppress(Exception):
                        return self.connect()
                    time.sleep(0.05)
                self.kill()
                output.seek(0)
                said = output.read().decode(errors="replace")
            # The children of a server that was killed may need a moment to notice.
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.command()} does not answer: {said}")
            time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL, for all of its processes: nothing is written any more, connections are cut."""
        if self._process is None:
            return
        processes = [psutil.Process(self._process.pid)] if self._process.poll() is None else []
        for process in [*processes, *(child for one in processes for child in one.children(True))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def run(self, *command: str) -> None:
        """Run a program to its end, as the server's user."""
        subprocess.run([*self._as_user(), *command], check=True, capture_output=True)

    def _as_user(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        return [
            needs.program("setpriv"),
            *(f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"),
        ]


class PostgreSQL(CrashingDatabase):
    user = "postgres"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "ENGINE": "tests.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
            "HOST": "127.0.0.1",
            "PORT": self.port,
        }

    def initialise(self) -> None:
        initdb = needs.program("initdb", "/usr/lib/postgresql/*/bin")
        self.run(initdb, "-D", str(self.data), "-U", "postgres", "-A", "trust", "--no-sync")

    def command(self) -> list[str]:
        return [
            needs.program("postgres", "/usr/lib/postgresql/*/bin"),
            *("-D", str(self.data), "-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
        ]

    def connect(self) -> None:
        psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres", connect_timeout=3
        ).close()


class MariaDB(CrashingDatabase):
    user = "mysql"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "ENGINE": "tests.mariadb",
            "NAME": "test",
            "USER": "root",
            "HOST": "127.0.0.1",
            "PORT": self.port,
        }

    def initialise(self) -> None:
        self.run(
            needs.program("mariadb-install-db"),
            *("--no-defaults", f"--datadir={self.data}"),
            "--auth-root-authentication-method=normal",
        )

    def command(self) -> list[str]:
        return [
            needs.program("mariadbd", "/usr/sbin"),
            *("--no-defaults", f"--datadir={self.data}", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--socket={self.folder / 'socket'}"),
            *("--innodb-buffer-pool-size=16M", "--performance-schema=OFF"),
        ]

    def connect(self) -> None:
        from tests.mariadb import connect

        connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=3).close()
