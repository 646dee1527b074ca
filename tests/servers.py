"""The servers that tests start, and what a test may do to them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from example_project import servers
from example_project.redis_binary import NoRedis, find_binary
from example_project.servers import SERVER_START_SECONDS, PortTaken, free_port, start_process

__all__ = [
    "NoRedis", "OwnProcess", "RedisServer", "find_binary", "forget_kept", "free_port", "kept_in",
    "own_redis", "start_process",
]  # fmt: skip


class OwnProcess:
    """A server that a test may pause and kill; `RuntimeError` if it is not ours."""

    _process: subprocess.Popen[bytes] | None

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        process = self._ours()
        process.send_signal(signal.SIGSTOP)
        # The signal may take effect a moment later.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: what was sent meanwhile is answered now."""
        self._ours().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: connections are cut, new ones refused; what is in memory is gone."""
        process = self._ours()
        process.kill()
        process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _ours(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("it is not ours to pause, end or start again")
        return self._process


class RedisServer(OwnProcess, servers.RedisServer):
    """A running Redis that a test may use so and start again, unless ``REDIS_URL`` names it."""

    def restart(self) -> None:
        """A new, empty server on the same port."""
        self._ours()
        self.stop()
        deadline = time.monotonic() + SERVER_START_SECONDS
        while True:
            try:
                return self._launch()
            except PortTaken:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server, also one that is paused."""
        if self.is_running():
            self.resume()
        super().stop()


own_redis = RedisServer.own
"""A Redis for the time of the block"""


def kept_in(folder: Path) -> tuple[str, ...]:
    """The options of a server that has its data after a kill: what it has answered is in the folder
    by then, which is made."""
    folder.mkdir(exist_ok=True)
    return ("--dir", str(folder), "--appendonly", "yes", "--appendfsync", "no")


def forget_kept(folder: Path) -> None:
    """Remove what a server that has ended, with the options `kept_in`, would find there."""
    shutil.rmtree(folder / "appendonlydir", ignore_errors=True)
    (folder / "appendonly.aof").unlink(missing_ok=True)  # Of a server before Redis 7.
