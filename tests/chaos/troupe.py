"""The player processes: started, stopped, killed and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from example_project.die_with_parent import die_with_parent
from tests.chaos.history import History, now
from tests.proxy import CutProxy

__all__ = ["Player", "Troupe"]

ROOT = Path(__file__).resolve().parents[2]


class Player:
    """One process that plays, and what the conductor does to it."""

    def __init__(self, name: str, proxy: CutProxy, folder: Path, seed: str, until: float) -> None:
        self.name = name
        self.proxy = proxy
        self.log = folder / f"{name}.log"
        self.stopped = False
        self.known_alive = now()
        command = [sys.executable, "-m", "tests.chaos.player", str(folder), name, seed, str(until)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # However we end, it does not outlive us.
                die_with_parent(command, by=signal.SIGKILL),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ
                | {
                    "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
                    "CHAOS_REDIS": proxy.url,
                    "CHAOS_PROCESS": name,
                },
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status; None while it lives."""
        status = self._process.poll()
        if status is None:
            self.known_alive = now()
        return status

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands, or has ended."""
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask_threads(self) -> None:
        """Have it write to its log what its threads are at."""
        self._process.send_signal(signal.SIGUSR1)

    def dismiss(self, seconds: float) -> None:
        """Let it end, now that it is at rest."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


class Troupe:
    """All players, one in each place; each place has a proxy of its own."""

    def __init__(
        self, proxies: Sequence[CutProxy], folder: Path, seed: str, until: float, history: History
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._until = until
        self._history = history
        self._proxies = proxies
        self._started = [0] * len(proxies)
        self.players: list[Player] = []
        for place in range(len(proxies)):
            self.players.append(self._start(place))

    def _start(self, place: int) -> Player:
        self._started[place] += 1
        name = f"{place}.{self._started[place]}"
        return Player(name, self._proxies[place], self._folder, self._seed, self._until)

    def kill(self, place: int) -> None:
        """SIGKILL, and a new one in its place."""
        player, since = self.players[place], now()
        player.kill()
        self._history.write("fault", fault="killed", whom=player.name, since=since)
        self.players[place] = self._start(place)

    def replace_dead(self) -> None:
        """Note who ended by itself, and start another one in its place."""
        for place, player in enumerate(self.players):
            status = player.status()
            if status is not None:
                self._history.write(
                    "died", whom=player.name, since=player.known_alive, status=status,
                    log=player.log.read_text(errors="replace")[-2000:],
                )  # fmt: skip
                self.players[place] = self._start(place)

    def end(self) -> None:
        """End all of them, whatever they are at."""
        for player in self.players:
            player.kill()
