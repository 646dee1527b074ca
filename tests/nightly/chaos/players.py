"""The processes that play: started, stopped, killed, replaced and waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from example_project.die_with_parent import die_with_parent
from tests.nightly.chaos import LATE_SECONDS, LONGEST_TTL_SECONDS, LONGEST_WAIT_SECONDS
from tests.nightly.chaos.history import History, now
from tests.proxy import CutProxy

__all__ = ["Player", "rest"]

ROOT = Path(__file__).resolve().parents[3]
REST_SECONDS = LONGEST_WAIT_SECONDS + 2 * LONGEST_TTL_SECONDS + LATE_SECONDS
"""in which all have ended, once nobody begins anything more"""


class Player:
    """One process at a time in one place, which begins nothing after ``until``."""

    def __init__(
        self, place: int, proxy: CutProxy, folder: Path, seed: str, until: float, history: History
    ) -> None:
        self.proxy = proxy
        self._place = place
        self._folder = folder
        self._arguments = (seed, str(until))
        self._history = history
        self._started = 0
        self._start()

    def _start(self) -> None:
        self._started += 1
        self.name = f"{self._place}.{self._started}"
        self.stopped = False
        play = ["tests.nightly.chaos.play", str(self._folder), self.name, *self._arguments]
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                # However we end, it does not outlive us.
                die_with_parent([sys.executable, "-m", *play], by=signal.SIGKILL),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                env=os.environ | {"CHAOS_REDIS": self.proxy.url, "CHAOS_PROCESS": self.name},
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands, or has ended."""
        self.stopped = True
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self.stopped = False
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """SIGKILL, and a new one in its place."""
        since, status = now(), self.process.poll()
        self.end()
        if status is None:
            self._history.write("fault", fault="killed", whom=self.name, since=since)
        else:
            self._history.write("died", whom=self.name, since=since, status=status)
        self._start()


def rest(players: Sequence[Player], history: History) -> None:
    """Wait until all have ended, for so long; the log of one that has not says where it is."""
    deadline = now() + REST_SECONDS
    while any(player.process.poll() is None for player in players) and now() < deadline:
        time.sleep(0.05)
    for player in players:
        player.process.send_signal(signal.SIGUSR1)
        status = player.process.returncode
        if status:
            history.write("died", whom=player.name, since=now(), status=status)
