"""What the conductor does to the players, their connections and the server, at random."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from random import Random

import redis

from tests.chaos.history import History, now
from tests.chaos.pair import Pair
from tests.chaos.server_faults import ServerFaults
from tests.chaos.troupe import Troupe
from tests.proxy import CutProxy

__all__ = ["Faults"]

TICK_SECONDS = 0.005
CALM, STORM = (0.5, 2.0), (0.1, 1.0)
"""seconds from one fault to the next"""
CALMS, STORMS = (3.0, 10.0), (1.0, 5.0)
"""seconds of a calm, in which single processes are disturbed, and of a storm"""
REPLIES = (b"", b"EVAL", b"SUBSCRIBE", b"CLIENT", b"SETNAME")
"""to what a reply is lost"""


class Faults:
    """Begins faults and ends them, each in its time.

    ``proxies`` are the players' and the conductor's own, the last one, which is not disturbed.
    """

    def __init__(
        self,
        troupe: Troupe,
        pair: Pair,
        proxies: Sequence[CutProxy],
        history: History,
        chance: Random,
    ) -> None:
        self._troupe = troupe
        self._pair = pair
        self._proxies = proxies
        self._history = history
        self._chance = chance
        self._redis: redis.Redis = redis.Redis.from_url(proxies[-1].url, socket_timeout=5)
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._server_stopped = False
        of_server = ServerFaults(
            pair, self._redis, chance, self._note, self._after, self._follow_master
        )
        self._server_faults = of_server
        of_one: list[tuple[Callable[[], None], int]] = [
            (self._stop, 6), (self._kill, 2), (self._forget_scripts, 1), (self._slow, 4),
        ]  # fmt: skip
        of_all: list[tuple[Callable[[], None], int]] = [
            (self._cut, 3), (self._cut_all, 1), (self._kill_subscribers, 2), (self._refuse, 1),
            (self._kill_clients, 2), (self._lose_reply, 6), (self._pause_proxy, 2),
            (self._stop_server, 1), (self._pause_clients, 1),
        ]  # fmt: skip
        of_the_server = [(self._of(fault), 1) for fault in of_server.all()]
        self._calm, self._storm = of_one, of_one + of_all + of_the_server

    def _of(self, fault: Callable[[], None]) -> Callable[[], None]:
        """A fault of the server, unless it does not answer, or takes no writes, now."""
        return lambda: None if self._server_stopped or self._server_faults.busy else fault()

    def run(self, until: float) -> None:
        """Disturb until then, and leave nothing disturbed."""
        chance = self._chance
        try:
            stormy, over, due = False, now(), now()
            while now() < until:
                if now() > over:
                    stormy = not stormy
                    over = now() + chance.uniform(*(STORMS if stormy else CALMS))
                if now() > due:
                    faults, weights = zip(*(self._storm if stormy else self._calm), strict=True)
                    chance.choices(faults, weights=weights)[0]()
                    due = now() + chance.uniform(*(STORM if stormy else CALM))
                self._tick()
        finally:
            self._end_all()

    def _tick(self) -> None:
        while self._ends and self._ends[0][0] <= now():
            heapq.heappop(self._ends)[2]()
        if not self._server_stopped:
            self._troupe.replace()
        time.sleep(TICK_SECONDS)

    def _end_all(self) -> None:
        while self._ends:
            with contextlib.ExitStack() as stack:  # Each, even if another one fails.
                for _, _, end in sorted(self._ends, reverse=True):
                    stack.callback(end)
                self._ends.clear()

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        heapq.heappush(self._ends, (now() + seconds, next(self._order), end))

    def _note(self, fault: str, since: float, whom: str = "") -> None:
        self._history.write("fault", fault=fault, whom=whom, since=since)

    def _follow_master(self) -> None:
        for proxy in self._proxies:
            proxy.target = self._pair.address
            proxy.cut()

    # Of one process.

    def _stop(self) -> None:
        player = self._chance.choice(self._troupe.players)
        if player.stopped or player.status() is not None:
            return
        since = now()
        player.stop()

        def resume() -> None:
            player.resume()
            self._note("stopped", since, player.name)

        self._after(self._chance.choice([0.1, 0.5, 2, 5]) * self._chance.uniform(0.5, 1), resume)

    def _kill(self) -> None:
        self._troupe.kill(self._chance.randrange(len(self._troupe.players)))

    def _cut(self) -> None:
        player, since = self._chance.choice(self._troupe.players), now()
        player.proxy.cut()
        self._note("cut", since, player.name)

    def _lose_reply(self) -> None:
        player, since = self._chance.choice(self._troupe.players), now()
        player.proxy.drop_reply(self._chance.choice(REPLIES), times=self._chance.randint(1, 3))
        if self._chance.random() < 0.5:
            player.proxy.cut()  # They connect anew, and it is one of those replies.

        def over() -> None:
            player.proxy.drop_reply(times=0)
            self._note("reply lost", since, player.name)

        self._after(0.3, over)

    def _pause_proxy(self) -> None:
        player, since = self._chance.choice(self._troupe.players), now()
        player.proxy.pause()

        def resume() -> None:
            player.proxy.resume()
            self._note("proxy paused", since, player.name)

        self._after(self._chance.choice([0.1, 0.5, 2]) * self._chance.uniform(0.5, 1), resume)

    def _refuse(self) -> None:
        """As when a server is started again."""
        player, since = self._chance.choice(self._troupe.players), now()
        player.proxy.refuse()
        player.proxy.cut()

        def accept() -> None:
            player.proxy.accept()
            self._note("refused", since, player.name)

        self._after(self._chance.uniform(0.01, 1), accept)

    def _slow(self) -> None:
        """Everything of one process takes some milliseconds more, for a second or so."""
        player, since = self._chance.choice(self._troupe.players), now()
        over = since + self._chance.uniform(1, 4)

        def hold_back() -> None:
            player.proxy.pause()
            self._after(self._chance.uniform(0.005, 0.04), pass_on)

        def pass_on() -> None:
            player.proxy.resume()
            if now() < over:
                self._after(TICK_SECONDS, hold_back)
            else:
                self._note("slow", since, player.name)

        hold_back()

    # Of all.

    def _cut_all(self) -> None:
        since = now()
        for player in self._troupe.players:
            player.proxy.cut()
        self._note("cut", since)

    def _kill_subscribers(self) -> None:
        self._ask("subscribers killed", "CLIENT", "KILL", "TYPE", "pubsub")

    def _kill_clients(self) -> None:
        self._ask("clients killed", "CLIENT", "KILL", "TYPE", "normal")

    def _forget_scripts(self) -> None:
        if not self._server_stopped:
            self._redis.execute_command("SCRIPT", "FLUSH")  # type: ignore[no-untyped-call]

    def _pause_clients(self) -> None:
        # Who ends that the server takes no writes has to reach it.
        if self._server_stopped or self._server_faults.busy:
            return
        since, seconds = now(), self._chance.uniform(0.05, 1.5)
        milliseconds = int(seconds * 1000)
        self._redis.execute_command("CLIENT", "PAUSE", milliseconds)  # type: ignore[no-untyped-call]
        self._server_stopped = True

        def over() -> None:
            self._server_stopped = False
            self._note("clients paused", since)

        self._after(seconds + 0.01, over)

    def _stop_server(self) -> None:
        if self._server_stopped or self._server_faults.busy:
            return
        since = now()
        server = self._pair.master
        server.pause()
        self._server_stopped = True

        def resume() -> None:
            server.resume()
            self._server_stopped = False
            self._note("redis stopped", since)

        self._after(self._chance.uniform(0.1, 2), resume)

    def _ask(self, fault: str, *command: str) -> None:
        if self._server_stopped:
            return
        since = now()
        self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        self._note(fault, since)
