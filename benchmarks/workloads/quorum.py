"""A quorum of five servers beside one of them, on one machine and with a network between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from django.test.utils import override_settings

from ..bench import Bench
from ..delayed import delayed
from ..raw import RawSocket
from ..rounds import Spread, paired
from ..store_columns import Ours
from ..store_servers import STORES, redis_server
from ..tables import Cell, Table

__all__ = ["run"]

MEMBERS = 5
ONE_WAY_MS = (0.0, 0.5, 2.0)
"""how far the servers are: on this machine, in this region, in the next one"""


def run(bench: Bench) -> list[Table]:
    number, rounds = bench.pick((2, 2), (20, 30))
    rows: list[dict[str, Cell]] = []
    with ExitStack() as stack:
        ports = [stack.enter_context(redis_server()).port for _ in range(MEMBERS)]
        for one_way in ONE_WAY_MS:
            with _columns(ports, one_way) as columns:
                rows += _measured(columns, number, rounds, one_way)
    delay = (
        "With a delay, one process passes on what is sent and what is answered so many ms later, "
        "in each column alike. Five servers that are asked at once share this machine's "
        "processors with it, with each other and with the caller: on hosts of their own they "
        "would not."
    )
    notes = [
        f"{rounds} rounds of {number} pairs, in one thread; five servers on one machine. {delay}",
        "The bare sockets send SET NX PX, and the EVALSHA that compares and deletes.",
    ]
    title = f"Acquire + release: a quorum of {MEMBERS} beside one server"
    return [Table("quorum", title, rows, "over one store", notes)]


@contextmanager
def _columns(ports: list[int], one_way: float) -> Iterator[dict[str, Any]]:
    """The columns, on servers that are so many ms away. The first one is the floor."""
    with ExitStack() as stack:
        if one_way:
            ports = stack.enter_context(delayed(ports, one_way / 1000))
        urls = [f"redis://127.0.0.1:{port}/0" for port in ports]
        backend = "django_redis.cache.RedisCache"
        caches = {f"m{at}": {"BACKEND": backend, "LOCATION": url} for at, url in enumerate(urls)}
        tasklock: dict[str, Any] = {alias: {"CACHE": alias} for alias in caches}
        # Servers that have just been started would not count for five minutes.
        options = {"STORES": list(caches), "LONGEST_TTL": None}
        tasklock["quorum"] = {"BACKEND": f"{STORES}.quorum.QuorumStore", "OPTIONS": options}
        tasklock["one"] = {"CACHE": "m0", "KEY_PREFIX": "one"}
        tasklock["default"] = {"CACHE": "m0"}
        stack.enter_context(override_settings(TASKLOCK=tasklock, CACHES=caches | {
            "default": caches["m0"]}))  # fmt: skip
        yield {
            "RedisStore, one server": Ours("one"),
            f"QuorumStore of {MEMBERS}": Ours("quorum"),
            "bare socket, one server": RawSocket(urls[0]),
            f"bare sockets, {MEMBERS} servers": RawSocket(*urls),
        }


def _measured(
    columns: dict[str, Any], number: int, rounds: int, one_way: float
) -> list[dict[str, Cell]]:
    used: dict[str, list[float]] = {title: [] for title in columns}

    def work(title: str) -> float:
        column, name = columns[title], f"bench:{os.getpid()}"
        start, processor = time.perf_counter(), time.thread_time()
        for _ in range(number):
            held = column.acquire(name)
            assert held is not None
            column.release(held)
        used[title].append((time.thread_time() - processor) / number * 1_000_000)
        return (time.perf_counter() - start) / number

    floor = next(iter(columns))
    for title in columns:
        work(title)  # Connections are made.
        used[title].clear()
    measured = paired({t: (partial(work, floor), partial(work, t)) for t in columns}, rounds)
    return [
        {
            "column": title,
            "one way, ms": one_way,
            "ms a pair": each.seconds.times(1000),
            "over one store": each.ratio,
            "of it on the caller's processor, us": Spread.of(used[title]),
        }
        for title, each in measured.items()
    ]
