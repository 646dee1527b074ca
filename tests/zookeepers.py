"""ZooKeeper servers that tests start, alone or as an ensemble, and what a test may do to them."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kazoo.protocol.connection
import kazoo.retry
from kazoo.client import KazooClient

from tests import needs
from tests.inside import zookeeper_links
from tests.servers import OwnProcess, free_port, start_process

__all__ = ["ZooKeeper", "client_of", "ensemble", "own_zookeeper"]

# A client draws whenever it looks at its connection, in a thread of its own. From Python's own
# chance, Hypothesis would take that for a strategy's.
kazoo.protocol.connection.random = kazoo.retry.random = random.Random()

JAR = Path("/usr/share/java/zookeeper.jar")
"""Debian's; it names the other jars"""
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
START_SECONDS = 60.0
STARTS = 3
"""how often to try to start servers"""
TICK_MS = 200
"""sessions may be as short as two ticks"""
JVM = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)  # fmt: skip


class ZooKeeper(OwnProcess):
    """A running server.

    Args:
        folder: where its data is.
        port: for clients, on the loopback interface.
        directives: of zoo.cfg, besides those that every server here has.
        number: its number in the ensemble; None: it is alone.
        sync: whether it waits for the disk at each transaction.
        jvm: more arguments of java.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        directives: Mapping[str, object] = {},
        number: int | None = None,
        *,
        sync: bool = False,
        jvm: Sequence[str] = (),
    ) -> None:
        self.folder, self.port, self.jvm = folder, port, (*JVM, *jvm)
        data = folder / "data"
        data.mkdir(parents=True)
        if number is not None:
            (data / "myid").write_text(str(number))
        written = {
            "dataDir": data, "tickTime": TICK_MS, "clientPort": port,
            "clientPortAddress": "127.0.0.1", "maxClientCnxns": 0, "maxSessionTimeout": 60_000,
            "admin.enableServer": "false", "4lw.commands.whitelist": "*",
            "forceSync": "yes" if sync else "no", **directives,
        }  # fmt: skip
        lines = [f"{key}={value}" for key, value in written.items()]
        (folder / "zoo.cfg").write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """As the option HOSTS."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process; it does not serve yet."""
        java = shutil.which("java")
        if java is None or not JAR.exists():
            needs.missing(f"ZooKeeper cannot be started: there is no java, or no {JAR}")
        with (self.folder / "log").open("wb") as log:
            self._process = start_process(
                [java, *self.jvm, "-cp", str(JAR), MAIN, str(self.folder / "zoo.cfg")], log
            )

    def wait(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + START_SECONDS
        while not self.command("srvr").startswith("Zookeeper version"):
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"ZooKeeper on port {self.port} does not serve: {log}")
            time.sleep(0.02)

    def command(self, word: str) -> str:
        """The answer to a command of four letters; an empty text if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def figures(self) -> dict[str, str]:
        """What ``mntr`` says."""
        lines = self.command("mntr").splitlines()
        return dict(line.split("\t", 1) for line in lines if "\t" in line)

    @property
    def leads(self) -> bool:
        """Whether it is the leader of its ensemble."""
        return self.figures().get("zk_server_state") == "leader"

    def restart(self) -> None:
        """The same server again, with its data and its sessions."""
        self.stop()
        self.start()
        self.wait()

    def stop(self) -> None:
        """End the server, also one that is paused."""
        if self.is_running():
            self.resume()
            self._ours().terminate()
            self._ours().wait()


@contextlib.contextmanager
def own_zookeeper(
    *, sync: bool = False, jvm: Sequence[str] = (), **directives: object
) -> Iterator[ZooKeeper]:
    """A server for the time of the block."""

    def make(folder: Path) -> list[ZooKeeper]:
        return [ZooKeeper(folder / "alone", free_port(), directives, sync=sync, jvm=jvm)]

    with _running(make) as (server,):
        yield server


@contextlib.contextmanager
def ensemble(size: int = 3) -> Iterator[list[ZooKeeper]]:
    """So many servers that elect a leader, for the time of the block."""

    def make(folder: Path) -> list[ZooKeeper]:
        numbers = range(1, size + 1)
        directives: dict[str, object] = {"initLimit": 50, "syncLimit": 10}
        for number in numbers:
            directives[f"server.{number}"] = f"127.0.0.1:{free_port()}:{free_port()}"
        return [ZooKeeper(folder / str(each), free_port(), directives, each) for each in numbers]

    with _running(make) as servers:
        yield servers


@contextlib.contextmanager
def _running(make: Callable[[Path], list[ZooKeeper]]) -> Iterator[list[ZooKeeper]]:
    """The servers that are made in a folder, for the time of the block.

    Java takes a second to bind a port, and others may take it meanwhile, as the port of their end
    of a connection too: other servers are made then.
    """
    with tempfile.TemporaryDirectory(prefix="tasklock-zookeeper-") as folder:
        for tries_left in reversed(range(STARTS)):
            servers = make(Path(folder) / str(tries_left))
            with _ending(servers):
                try:
                    _start(servers)
                except RuntimeError:
                    if not tries_left:
                        raise
                    continue
                yield servers
                return


def _start(servers: Sequence[ZooKeeper]) -> None:
    for server in servers:
        server.start()
    for server in servers:
        server.wait()


@contextlib.contextmanager
def _ending(servers: Sequence[ZooKeeper]) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            if server.is_running():
                server.resume()
        ports = {server.port for server in servers}
        for link in zookeeper_links():
            # Or it would try to connect, and log that, until the process ends.
            if link.client is not None and ports & {port for _, port in link.client.hosts}:
                link.close()
        for server in servers:
            server.stop()


@contextlib.contextmanager
def client_of(hosts: str, **options: Any) -> Iterator[Any]:
    """Somebody else's client of ZooKeeper, with a session of its own."""
    client = KazooClient(hosts, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
