"""What is left when the players are at rest: in their processes, at the server, in the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import redis

from example_project.servers import RedisServer
from tests.chaos.bounds import LATE, LONGEST_TTL, LONGEST_WAIT, NAMES
from tests.chaos.history import History, now
from tests.chaos.troupe import Troupe

__all__ = ["write_aftermath"]

REST = LONGEST_WAIT + 2 * LONGEST_TTL + LATE
"""seconds in which a player should come to rest"""


def write_aftermath(
    troupe: Troupe, server: RedisServer, history: History, rested: Callable[[str], bool]
) -> None:
    """Wait until the players are at rest, and write down what they left."""
    _await_rest(troupe, history, rested)
    client: redis.Redis = redis.Redis.from_url(server.url)
    _write_connections(client, troupe, history)
    _write_store(client, history)


def _await_rest(troupe: Troupe, history: History, rested: Callable[[str], bool]) -> None:
    deadline = now() + REST
    busy = list(troupe.players)
    while busy and now() < deadline:
        time.sleep(0.1)
        busy = [player for player in busy if not rested(player.name) and player.status() is None]
    for player in busy:
        player.ask_threads()
    time.sleep(0.5 if busy else 0)
    for player in busy:
        history.write("stuck", whom=player.name, threads=player.log.read_text("utf-8", "replace"))
    for player in troupe.players:
        status = player.status()
        if status is not None:
            history.write("died", whom=player.name, since=player.known_alive, status=status)


def _write_connections(client: redis.Redis, troupe: Troupe, history: History) -> None:
    counts = Counter(str(row["name"]) for row in client.client_list())
    for player in troupe.players:
        history.write("connections", whom=player.name, number=counts[player.name])


def _write_store(client: redis.Redis, history: History) -> None:
    from django_tasklock import locks

    for name in NAMES:
        # Whoever is next in a queue of the dead is passed over, and what was left lapses.
        lease = locks.acquire(name, ttl=1, wait=LONGEST_TTL + LATE)
        if lease is None:
            history.write("left", name=name, what=f"{name} cannot be had: {locks.get(name)}")
        else:
            lease.release()
    store = locks.store
    index, fences = getattr(store, "index"), getattr(store, "fences")  # noqa: B009
    for key in client.scan_iter(count=1000):
        if key == fences:
            fields = [field for field in client.hkeys(key) if field]
            if fields:
                history.write("left", what=f"fences of {fields}")
        elif key == index:
            live = client.zrangebyscore(key, time.time() * 1000, "+inf")
            if live:
                history.write("left", what=f"{live} in the index")
        else:
            history.write("left", what=f"the key {key!r}, a {client.type(key)!r}")
