"""What the conductor does to the players, their connections and the server, at random."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from tests.nightly.chaos.history import History, now
from tests.nightly.chaos.players import Player
from tests.servers import RedisServer, forget_kept

__all__ = ["Faults"]

TICK_SECONDS = 0.005
CALM, STORM = (0.5, 2.0), (0.1, 1.0)
"""seconds from one fault to the next"""
CALMS, STORMS = (3.0, 10.0), (1.0, 5.0)
"""seconds of a calm, in which single processes are disturbed, and of a storm"""
REPLIES = (b"", b"EVAL", b"SUBSCRIBE", b"CLIENT")
"""to what a reply is lost"""
Fault = Callable[[Player], None]


class Faults:
    """Begins faults and ends them, each in its time. ``kept`` is where the server has its data."""

    def __init__(
        self, players: Sequence[Player], server: RedisServer, kept: Path, history: History,
        chance: Random,
    ) -> None:  # fmt: skip
        self._players = players
        self._server = server
        self._kept = kept
        self._history = history
        self._chance = chance
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._server_paused = False
        self._calm: dict[Fault, int] = {self._stop: 6, Player.kill: 1}
        self._storm: dict[Fault, int] = self._calm | {
            self._cut: 3, self._cut_all: 1, self._lose_reply: 6, self._pause_server: 2,
            self._restart: 4,
        }  # fmt: skip

    def run(self, until: float) -> None:
        """Disturb until then, and leave nothing disturbed."""
        chance = self._chance
        stormy, over, due = False, now(), now()
        while now() < until:
            if now() > over:
                stormy = not stormy
                over = now() + chance.uniform(*(STORMS if stormy else CALMS))
            if now() > due:
                faults = self._storm if stormy else self._calm
                fault = chance.choices(list(faults), weights=list(faults.values()))[0]
                fault(chance.choice(self._players))
                due = now() + chance.uniform(*(STORM if stormy else CALM))
            while self._ends and self._ends[0][0] <= now():
                heapq.heappop(self._ends)[2]()
            time.sleep(TICK_SECONDS)
        for _, _, end in sorted(self._ends):
            end()

    def _note(self, fault: str, since: float, whom: str = "") -> None:
        self._history.write("fault", fault=fault, whom=whom, since=since)

    def _goes_on(
        self, fault: str, since: float, seconds: float, end: Callable[[], None], whom: str = ""
    ) -> None:
        """The fault ends after so many seconds, with a call."""

        def over() -> None:
            end()
            self._note(fault, since, whom)

        heapq.heappush(self._ends, (now() + seconds, next(self._order), over))

    def _stop(self, player: Player) -> None:
        if not player.stopped:
            since, chance = now(), self._chance
            player.stop()
            seconds = chance.choice([0.1, 0.5, 2, 5]) * chance.uniform(0.5, 1)
            self._goes_on("stopped", since, seconds, player.resume, player.name)

    def _cut(self, player: Player) -> None:
        since = now()
        player.proxy.cut()
        self._note("cut", since, player.name)

    def _lose_reply(self, player: Player) -> None:
        proxy, since = player.proxy, now()
        proxy.drop_reply(self._chance.choice(REPLIES), times=self._chance.randint(1, 3))
        if self._chance.random() < 0.5:
            proxy.cut()  # They connect anew, and it is one of those replies.
        self._goes_on("reply lost", since, 0.3, partial(proxy.drop_reply, times=0), player.name)

    def _cut_all(self, _: Player) -> None:
        for player in self._players:
            self._cut(player)

    def _pause_server(self, _: Player) -> None:
        if not self._server_paused:
            since, self._server_paused = now(), True
            self._server.pause()
            self._goes_on("server paused", since, self._chance.uniform(0.1, 2), self._resume)

    def _resume(self) -> None:
        self._server.resume()
        self._server_paused = False

    def _restart(self, _: Player) -> None:
        """Killed, and started again, with all that it had answered, or empty."""
        if self._server_paused:
            return
        since, empty = now(), self._chance.random() < 0.5
        self._server.kill()
        if empty:
            forget_kept(self._kept)
        self._server.restart()
        self._note("server restarted", since)
        if empty:
            self._note("emptied", since)
