"""The conductor: starts a server and the players, disturbs them, and ends everything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import redis

from tests.nightly.chaos import (
    LATE_SECONDS,
    LONGEST_TTL_SECONDS,
    LONGEST_WAIT_SECONDS,
    NAMES,
    play,
)
from tests.nightly.chaos.history import History, now
from tests.nightly.chaos.player import Player
from tests.proxy import CutProxy
from tests.servers import RedisServer, find_binary, forget_kept, kept_in
from tests.store_cases import redis_cache

__all__ = ["run"]

PROCESSES, AT_ONCE = 3, 4
"""that play; faults at one time"""
QUIET_SECONDS = 3.0
"""at the end, in which nobody is disturbed; at most a quarter of the whole"""
REST_SECONDS = LONGEST_WAIT_SECONDS + 2 * LONGEST_TTL_SECONDS + LATE_SECONDS
"""in which all have ended, once nobody begins anything more"""
CALM, STORM, WEATHER_SECONDS = (0.5, 2.0), (0.1, 1.0), 5.0
"""seconds from one fault to the next, and from a calm, in which single processes are disturbed, to
a storm"""
HICCUP_SECONDS = 0.5
"""by which a pause may be longer, before the machine is at fault"""
REPLIES = (b"", b"EVAL", b"SUBSCRIBE", b"CLIENT")
"""to what a reply is lost"""


def run(folder: Path, seconds: float, seed: str) -> None:
    """Play for so many seconds, and leave the history in the folder: once a process."""
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        server = RedisServer.start(find_binary(), kept_in(folder / "redis"))
        stack.callback(server.stop)
        os.environ |= _settings(server.url)
        import django

        django.setup()
        history, until = History(folder, "conductor"), now() + seconds
        players, proxies = list[Player](), list[CutProxy]()
        for place in range(PROCESSES):
            proxy = stack.enter_context(CutProxy(("127.0.0.1", server.port)))
            proxies.append(proxy)
            env = _settings(proxy.url, few=place == 2)
            players.append(Player(place, history, env, play.__name__, folder, seed, str(until)))
            stack.callback(players[-1].end)
        # A player ends with the thread that has started it, so those last as long as they do.
        at_once = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        faults = Faults(players, proxies, server, folder / "redis", history)
        faults.run(at_once, until - min(QUIET_SECONDS, seconds / 4), Random(f"{seed}/faults"))
        for player in players:
            player.rest(until + REST_SECONDS)
        _write_what_is_left(server.url, history)


def _settings(url: str, *, few: bool = False) -> dict[str, str]:
    """The environment of a process; ``few``: its threads share fewer connections than they are."""
    pool: dict[str, Any] = {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool"} if few else {}
    pool |= {"CONNECTION_POOL_KWARGS": {"max_connections": 2, "timeout": 20}} if few else {}
    timeouts = {"SOCKET_CONNECT_TIMEOUT": 1, "SOCKET_TIMEOUT": 1}
    cache = redis_cache(url, **timeouts, **pool) | {"KEY_PREFIX": "chaos"}
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TASKLOCK_TEST_CACHES": json.dumps({"default": cache}),
        "TASKLOCK_TEST_TASKLOCK": json.dumps({"default": {"TTL": 2}}),
    }


class Faults:
    """What is done to players, their connections (each has one of the ``proxies``) and the server,
    which has its data in ``kept``."""

    def __init__(
        self, players: list[Player], proxies: list[CutProxy], server: RedisServer, kept: Path,
        history: History,
    ) -> None:  # fmt: skip
        self._players, self._proxies = players, dict(zip(players, proxies, strict=True))
        self._server, self._kept, self._write = server, kept, history.write
        self._server_harmed = threading.Lock()

    def run(self, at_once: ThreadPoolExecutor, until: float, chance: Random) -> None:
        """Disturb until then, and leave nothing disturbed."""
        calm = {self._stop: 6, self._kill: 1}
        storm = calm | {self._cut: 3, self._cut_all: 1, self._lose_reply: 6}
        storm |= {self._pause_server: 2, self._restart: 2, self._replace: 2}
        begun, began = list[Future[None]](), now()
        while now() < until:
            stormy = (now() - began) // WEATHER_SECONDS % 2 == 1
            of = storm if stormy else calm
            fault = chance.choices(list(of), weights=list(of.values()))[0]
            player, own = chance.choice(self._players), Random(chance.random())
            begun.append(at_once.submit(fault, player, own))
            pause, before = chance.uniform(*(STORM if stormy else CALM)), now()
            time.sleep(pause)
            if now() - before > pause + HICCUP_SECONDS:
                self._write("fault", fault="hiccup", whom="", since=before)
        for each in begun:
            each.result()

    @contextlib.contextmanager
    def _noted(
        self, fault: str, whom: str = "", harmed: threading.Lock | None = None
    ) -> Iterator[None]:
        """Write down what the block does. It waits until nobody else harms the same one."""
        with harmed or contextlib.nullcontext():
            since = now()
            yield
            self._write("fault", fault=fault, whom=whom, since=since)

    def _stop(self, player: Player, chance: Random) -> None:
        with self._noted("stopped", player.name, player.harmed):
            player.stop_for(chance.choice([0.1, 0.5, 2, 5]) * chance.uniform(0.5, 1))

    def _kill(self, player: Player, _: Random) -> None:
        with player.harmed:
            player.kill()

    def _cut(self, player: Player, _: Random) -> None:
        with self._noted("cut", player.name):
            self._proxies[player].cut()

    def _cut_all(self, _: Player, chance: Random) -> None:
        for player in self._players:
            self._cut(player, chance)

    def _lose_reply(self, player: Player, chance: Random) -> None:
        with self._noted("reply lost", player.name):
            proxy = self._proxies[player]
            proxy.drop_reply(chance.choice(REPLIES), times=chance.randint(1, 3))
            if chance.random() < 0.5:
                proxy.cut()  # They connect anew, and it is one of those replies.
            time.sleep(0.3)
            proxy.drop_reply(times=0)

    def _pause_server(self, _: Player, chance: Random) -> None:
        with self._noted("server paused", harmed=self._server_harmed):
            self._server.pause()
            time.sleep(chance.uniform(0.1, 2))
            self._server.resume()

    def _restart(self, *_: object) -> None:
        """Killed, and started again with all that it had answered."""
        with self._noted("server restarted", harmed=self._server_harmed):
            self._server.kill()
            self._server.restart()

    def _replace(self, *_: object) -> None:
        """Killed, and another one in its place, which is empty."""
        with self._noted("emptied", harmed=self._server_harmed):
            self._server.kill()
            forget_kept(self._kept)
            self._server.restart()


def _write_what_is_left(url: str, history: History) -> None:
    """Take each lock once, and write down what is left in Redis after that."""
    from django_tasklock import locks

    for name in NAMES:
        # Whoever is next in a queue of the dead is passed over, and what was left lapses.
        lease = locks.acquire(name, ttl=1, wait=LONGEST_TTL_SECONDS + LATE_SECONDS)
        if lease is None or not lease.release():
            history.write("left", name=name, what=f"{name} cannot be had: {locks.get(name)}")
    client: redis.Redis = redis.Redis.from_url(url)
    keys = getattr(locks.store, "keys")  # noqa: B009
    for key in client.scan_iter(count=1000):
        what: object = f"a {client.type(key)!r}"
        if key == keys.fences:
            # That of an expired lease goes with its entry in the index. No lock's name has a space.
            indexed = client.zrange(keys.index, 0, -1)
            what = [x for x in client.hkeys(key) if x and x[:1] != b" " and x not in indexed]
        elif key == keys.index:
            what = client.zrangebyscore(key, client.time()[0] * 1000, "+inf")
        elif key in (keys.history, keys.rare):
            what = client.ttl(key) <= 0
        if what:
            history.write("left", what=f"the key {key!r}: {what}")
