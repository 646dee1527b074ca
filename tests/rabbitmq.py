"""A RabbitMQ node of a run's own, which may be killed and started again on the same data."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from kombu import Connection

from tests.servers import free_port, start_process

__all__ = ["RabbitMQ"]

START_SECONDS = 60.0
STARTS = 3
"""how often to try other ports"""
SCRIPTS = "/usr/lib/rabbitmq/bin"
"""Debian's; those that it puts on the path run as another user, in another folder"""


class RabbitMQ:
    """A node, without plugins, which keeps durable queues and persistent messages.

    Args:
        folder: for all of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._names_port, link_port = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        self.environment = {
            **{key: value for key, value in os.environ.items() if "RABBITMQ" not in key},
            "HOME": str(folder),  # Of the cookie with which rabbitmqctl proves who it is.
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # So that the script becomes the node, and does not wait for it.
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_DIST_PORT": str(link_port),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODENAME": f"tasklock{self.port}@localhost",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rabbitmq.conf").touch()
        (folder / "plugins").write_text("[].\n")
        self._names: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_installed() -> bool:
        """Whether this machine has what a node needs."""
        return all(map(_program, ("rabbitmq-server", "rabbitmqctl", "epmd")))

    @classmethod
    @contextlib.contextmanager
    def own(cls, folder: Path) -> Iterator[RabbitMQ]:
        """A node for the time of the block, where it `is_installed`."""
        for _ in range(STARTS):
            node = cls(folder)
            try:
                node.start()
                if node.wait():
                    yield node
                    return
            finally:
                node.end()
            # Somebody else may have bound a port first; what it has written names its ports.
            said = node.said()
            shutil.rmtree(folder)
        raise RuntimeError(f"RabbitMQ does not start: {said}")

    def start(self) -> None:
        """Start the process; it does not serve yet."""
        if self._names is None:
            # Else the node starts one that outlives it.
            self._names = self._run("epmd")
        self._node = self._run("rabbitmq-server", "-noinput")

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self._node is not None and self._node.poll() is None

    @property
    def serves(self) -> bool:
        """Whether clients can connect."""
        try:
            with Connection(self.url, connect_timeout=3) as connection:
                connection.connect()
        except OSError:
            return False
        return True

    def wait(self) -> bool:
        """Wait until it serves. Returns False if it has ended instead."""
        deadline = time.monotonic() + START_SECONDS
        while not self.serves:
            if not self.runs:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"RabbitMQ does not answer: {self.said()}")
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """SIGKILL: connections are cut, new ones refused. Its data stays."""
        if self._node is not None:
            self._node.kill()
            self._node.wait()

    def end(self) -> None:
        """End it for good, however it is."""
        self.kill()
        if self._names is not None:
            self._names.kill()
            self._names.wait()

    def said(self) -> str:
        """The end of what it has printed."""
        return (self.folder / "rabbitmq-server.log").read_text(errors="replace")[-2000:]

    def ctl(self, *arguments: str) -> bytes:
        """What ``rabbitmqctl`` answers. Raises `subprocess.SubprocessError` if it cannot."""
        command = [_program("rabbitmqctl"), "--quiet", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, check=True, timeout=60
        ).stdout

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{program}.log").open("ab") as output:
            return start_process(
                [_program(program), *arguments], output, environment=self.environment
            )


def _program(name: str) -> str:
    """Its path, or "" where it is not installed."""
    return shutil.which(name, path=os.pathsep.join([SCRIPTS, os.environ.get("PATH", "")])) or ""
