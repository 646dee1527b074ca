"""The player processes: started, stopped, killed, seen off and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import redis

from example_project.die_with_parent import die_with_parent
from tests.chaos.bounds import CONNECTIONS, LATE_SECONDS, LONGEST_TTL_SECONDS, LONGEST_WAIT_SECONDS
from tests.chaos.history import History, now
from tests.proxy import CutProxy

__all__ = ["Player", "Troupe"]

ROOT = Path(__file__).resolve().parents[2]
PART = (15.0, 60.0)
"""seconds that a process plays: what it left when it is at rest is looked at again and again"""
CLOSING_SECONDS = 3.0
"""seconds in which the server should notice that connections are closed"""
REST = LONGEST_WAIT_SECONDS + 2 * LONGEST_TTL_SECONDS + LATE_SECONDS
"""seconds in which a player should come to rest"""


class Player:
    """One process that plays, and what the conductor does to it."""

    def __init__(self, name: str, proxy: CutProxy, folder: Path, seed: str, until: float) -> None:
        self.name = name
        self.proxy = proxy
        self.until = until
        self.log = folder / f"{name}.log"
        self._history = folder / f"{name}.jsonl"
        self.stopped = False
        self.known_alive = now()
        self._patience = 0.0
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

    def rested(self) -> bool:
        """Whether it has played its part, and all of its threads have ended."""
        if now() < self.until or not self._history.exists():
            return False
        with self._history.open("rb") as history:
            history.seek(max(0, os.fstat(history.fileno()).st_size - 1000))
            return b'"kind":"rested"' in history.read()

    def patience(self) -> float:
        """Until when to wait for the server to notice what it closed when it was at rest."""
        self._patience = self._patience or now() + CLOSING_SECONDS
        return self._patience

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

    def threads(self) -> str:
        """What its threads are at."""
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        return self.log.read_text("utf-8", "replace")[-8000:]

    def dismiss(self, seconds: float) -> None:
        """Let it end, now that it is at rest."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


class Troupe:
    """All players, one in each place; each place has a proxy of its own.

    Args:
        server: a URL of the server that is not disturbed.
        until: when the last of them has played its part.
    """

    def __init__(
        self,
        proxies: Sequence[CutProxy],
        server: str,
        folder: Path,
        seed: str,
        until: float,
        history: History,
    ) -> None:
        self._proxies = proxies
        self._redis: redis.Redis = redis.Redis.from_url(server, socket_timeout=10)
        self._folder = folder
        self._seed = seed
        self._until = until
        self._history = history
        self._chance = Random(f"{seed}/troupe")
        self._started = [0] * len(proxies)
        self.players: list[Player] = []
        for place in range(len(proxies)):
            self.players.append(self._start(place))

    def _start(self, place: int) -> Player:
        self._started[place] += 1
        name = f"{place}.{self._started[place]}"
        until = min(self._until, now() + self._chance.uniform(*PART))
        return Player(name, self._proxies[place], self._folder, self._seed, until)

    def kill(self, place: int) -> None:
        """SIGKILL, and a new one in its place."""
        player, since = self.players[place], now()
        player.kill()
        self._history.write("fault", fault="killed", whom=player.name, since=since)
        self.players[place] = self._start(place)

    def replace(self) -> None:
        """Start another one in the place of each that has ended by itself, or played its part."""
        for place, player in enumerate(self.players):
            over = player.status() is not None or now() > player.until
            if over and self._see_off(player):
                player.dismiss(0.5)
                player.kill()
                self.players[place] = self._start(place)

    def rest(self) -> None:
        """Wait until all have played their parts; they live on, at rest."""
        left = list(self.players)
        while left:
            time.sleep(0.05)
            left = [player for player in left if not self._see_off(player)]

    def end(self) -> None:
        """End all of them, whatever they are at."""
        for player in self.players:
            player.kill()

    def _see_off(self, player: Player) -> bool:
        """Write down how a player ended; False if it still plays."""
        status = player.status()
        if status is not None:
            log = player.log.read_text(errors="replace")[-8000:]
            self._history.write(
                "died", whom=player.name, since=player.known_alive, status=status, log=log
            )
        elif player.rested():
            rows = self._redis.client_list()
            number = sum(row["name"] == player.name for row in rows)
            if number > CONNECTIONS and now() < player.patience():
                return False  # It takes the proxy some time to pass on that one is closed.
            self._history.write("connections", whom=player.name, number=number)
        elif now() > player.until + REST and not player.stopped:
            self._history.write("stuck", whom=player.name, threads=player.threads())
        else:
            return False
        return True
