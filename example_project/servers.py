"""Finds a redis-server and runs it for this process: on a loopback port, without a file on disk.

``python -m example_project.servers`` prints what would be used, and exits 1 if there is nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import urlsplit

from example_project.die_with_parent import die_with_parent
from example_project.redis_binary import NoRedis, find_binary

SERVER_START_SECONDS = 15.0
SERVER_STOP_SECONDS = 5.0
PORT_ATTEMPTS = 20

S = TypeVar("S", bound="RedisServer")


class PortTaken(RuntimeError):
    """Another process was quicker to bind the port that looked free."""


class RedisServer:
    """A running Redis.

    Attributes:
        url: ``redis://...``, naming a database.
        port: its TCP port.
        pid: its process id; None for a server that is not ours (``REDIS_URL``).
        key_prefix: put this before every key. Empty on a server of one's own.
    """

    def __init__(self, url: str, port: int, *, key_prefix: str = "") -> None:
        self.url = url
        self.port = port
        self.key_prefix = key_prefix
        self._binary: Path | None = None
        self._options: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        # A replica saves what it gets from its primary. Under the usual name, dump.rdb, every
        # server that is started in the same directory later would load it.
        self._saved = Path(tempfile.gettempdir(), f"tasklock-{uuid.uuid4().hex}.rdb")

    @classmethod
    @contextlib.contextmanager
    def own(cls: type[S], *, needs_own: bool = False, options: Sequence[str] = ()) -> Iterator[S]:
        """A Redis for the time of the block: the one that ``REDIS_URL`` names, or a new one.

        Args:
            needs_own: start one even where ``REDIS_URL`` names a server, for callers that change
                the server itself.
            options: more arguments for the server, such as ``("--maxmemory", "10mb")``. They
                reach only a server that is started here.

        Raises:
            NoRedis: ``REDIS_URL`` is not set, and no redis-server was found or it did not start.
        """
        url = os.environ.get("REDIS_URL")
        if url and not needs_own:
            yield cls(url, urlsplit(url).port or 6379, key_prefix=f"t{uuid.uuid4().hex[:12]}")
            return
        server = cls.start(find_binary(), options)
        try:
            yield server
        finally:
            server.stop()

    @classmethod
    def start(cls: type[S], binary: Path, options: Sequence[str] = ()) -> S:
        """Start ``binary`` on a free loopback port and wait until it answers.

        Raises NoRedis with the server's last words if it does not.
        """
        for _ in range(PORT_ATTEMPTS):
            port = free_port()
            server = cls(f"redis://127.0.0.1:{port}/0", port)
            server._binary = binary
            server._options = options
            try:
                server._launch()
            except PortTaken:
                continue
            return server
        raise NoRedis(f"{binary}: no free port on 127.0.0.1 after {PORT_ATTEMPTS} attempts")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stop(self) -> None:
        """End the server, politely first. One that has ended, or is not ours, is left as it is."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(SERVER_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._saved.unlink(missing_ok=True)

    def _launch(self) -> None:
        assert self._binary is not None
        with tempfile.TemporaryFile() as output:
            self._process = start_process(
                [
                    str(self._binary),
                    *("--bind", "127.0.0.1", "--port", str(self.port)),
                    *("--save", "", "--appendonly", "no"),
                    *("--dir", str(self._saved.parent), "--dbfilename", self._saved.name),
                    *self._options,
                ],
                output,
            )
            try:
                self._await_answer(output)
            except BaseException:
                self.stop()
                raise

    def _await_answer(self, output: IO[bytes]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + SERVER_START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                words = _last_words(output)
                if "in use" in words:
                    raise PortTaken(words)
                raise NoRedis(f"{self._binary} ended at once: {words or 'without a word'}")
            # Another process that listens there has another pid.
            if _server_pid(self.port) == self._process.pid:
                return
            time.sleep(0.01)
        raise NoRedis(f"{self._binary} did not answer within {SERVER_START_SECONDS:.0f} s")


def own_redis(*, needs_own: bool = False) -> contextlib.AbstractContextManager[RedisServer]:
    """`RedisServer.own`, which also says what the argument means and what is raised."""
    return RedisServer.own(needs_own=needs_own)


@contextlib.contextmanager
def redis_of_the_site(state: Path) -> Iterator[None]:
    """The example site in the directory ``state``, and a Redis, told to its settings by the
    environment. Somebody else's Redis is left as it was; our own ends with all that is in it."""
    with own_redis() as server:
        os.environ.update(
            DJANGO_SETTINGS_MODULE="example_project.settings",
            EXAMPLE_STATE=str(state.resolve()),
            EXAMPLE_REDIS_URL=server.url,
            EXAMPLE_REDIS_PREFIX=server.key_prefix or "example",
        )
        try:
            yield
        finally:
            if server.key_prefix:
                from redis import Redis

                with Redis.from_url(server.url) as client:
                    for key in client.scan_iter(match=f"{server.key_prefix}*", count=1000):
                        client.delete(key)


def free_port() -> int:
    """A loopback port that was free a moment ago; another process may bind it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_process(
    arguments: Sequence[str], output: IO[bytes], *, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, so that Ctrl-C reaches only us and we end it.

    On Linux it is killed with the process that started it, however that one dies.
    """
    # The kernel means the death of the starting thread, so another than the main one would take the
    # server with it when it merely ends.
    if threading.current_thread() is threading.main_thread():
        arguments = die_with_parent(arguments)
    return subprocess.Popen(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _server_pid(port: int) -> int | None:
    """The pid of the Redis that answers on ``port``; None: there is none, or not yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.settimeout(1)
            connection.sendall(b"INFO server\r\nQUIT\r\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None
    found = re.search(rb"process_id:(\d+)", answer)
    return int(found[1]) if found else None


def _last_words(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").split("\n")
    return " ".join(line.strip() for line in lines[-6:]).strip()


def main() -> int:
    try:
        print(os.environ.get("REDIS_URL") or find_binary())
    except NoRedis as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
