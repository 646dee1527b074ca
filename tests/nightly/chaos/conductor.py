"""The conductor: starts everything, disturbs it, looks at the locks, and ends everything."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from random import Random

import redis

from tests.nightly.chaos import LATE_SECONDS, LONGEST_TTL_SECONDS, NAMES
from tests.nightly.chaos.faults import Faults
from tests.nightly.chaos.history import History, now
from tests.nightly.chaos.players import Player, rest
from tests.proxy import CutProxy
from tests.servers import RedisServer, find_binary, kept_in

__all__ = ["run"]

PROCESSES = 3
QUIET_SECONDS = 3.0
"""at the end, in which nobody is disturbed; at most a quarter of the whole"""
PAUSE_SECONDS, HICCUP_SECONDS = 0.04, 0.5
"""between two looks at all locks; by which that may be longer, before the machine is at fault"""


def run(folder: Path, seconds: float, seed: str) -> None:
    """Play for so many seconds, and leave the history in the folder: once a process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        server = RedisServer.start(find_binary(), kept_in(folder / "redis"))
        stack.callback(server.stop)
        proxies = [CutProxy(("127.0.0.1", server.port)) for _ in range(PROCESSES)]
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.nightly.chaos.settings"
        os.environ["CHAOS_REDIS"] = server.url
        import django

        django.setup()
        history = History(folder, "conductor")
        until = now() + seconds
        players: list[Player] = []
        for place, proxy in enumerate(map(stack.enter_context, proxies)):
            players.append(Player(place, proxy, folder, seed, until, history))
            stack.callback(players[-1].end)
        faults = Faults(players, server, folder / "redis", history, Random(f"{seed}/faults"))
        over = threading.Event()
        observer = threading.Thread(target=_observe, args=(history, over))
        observer.start()
        try:
            faults.run(until - min(QUIET_SECONDS, seconds / 4))
            rest(players, history)
        finally:
            over.set()
            observer.join()
        _write_what_is_left(server.url, history)


def _call_of(thread: str | None) -> str:
    """The name of the call: that of its thread, without what its record adds."""
    return (thread or "").rpartition("-")[0]


def _observe(history: History, over: threading.Event) -> None:
    """Look at the locks again and again, past the proxies."""
    from django_tasklock import StoreUnavailable, locks

    before = now()
    while not over.wait(PAUSE_SECONDS):
        if now() - before > PAUSE_SECONDS + HICCUP_SECONDS:
            history.write("fault", fault="hiccup", whom="", since=before)
        try:
            for name in NAMES:
                since, info = now(), locks.get(name)
                holder = _call_of(info.owner.thread) if info else ""
                queue = [_call_of(owner.thread) for owner in locks.waiters(name)]
                history.write("seen", name=name, since=since, holder=holder, queue=queue)
        except StoreUnavailable:
            pass  # It is paused, or starts again.
        before = now()


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
            # That of an expired lease goes with its entry in the index.
            indexed = client.zrange(keys.index, 0, -1)
            what = [x for x in client.hkeys(key) if x.strip() and x not in indexed]
        elif key == keys.index:
            what = client.zrangebyscore(key, client.time()[0] * 1000, "+inf")
        elif key == keys.history:
            what = client.ttl(key) <= 0
        if what:
            history.write("left", what=f"the key {key!r}: {what}")
