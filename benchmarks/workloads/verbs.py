"""What each verb asks of Redis: counts alone, the same on every machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.test.utils import override_settings

from django_tasklock import Lease, locks

from ..bench import Bench
from ..counting import Counter, Counts
from ..peers import FLOOR, OURS, columns
from ..rounds import interleaved
from ..store_servers import redis_cluster
from ..tables import Cell, Table

__all__ = ["run"]

WAIT_SECONDS = 10.0
"""seconds until a waiter must be in the queue"""


def run(bench: Bench) -> list[Table]:
    times = bench.pick(16, 1600)
    return [
        _pairs(bench),
        Table("verbs", f"{OURS}: what Redis does for each verb", _verbs(bench, times)),
        _kinds(bench, times),
    ]


def _pairs(bench: Bench) -> Table:
    """Every column by turns with the floor: the server's processor time varies as any other."""
    times, rounds = bench.pick((16, 1), (400, 20))
    here = columns(bench.url, bench.say)
    done = {name: _Sum() for name in here}

    def seconds(name: str, done: _Sum) -> float:
        column = here[name]
        counts = _counted(bench, lambda: column.release(column.acquire("verbs")), times)
        done.add(counts)
        return counts.seconds_each(times)

    measured = interleaved(
        partial(seconds, FLOOR, _Sum()),
        {name: partial(seconds, name, done[name]) for name in here},
        rounds,
    )
    rows: list[dict[str, Cell]] = []
    for name, paired in measured.items():
        row = _row(f"{name}: acquire + release", done[name].counts, times * rounds)
        which = row.pop("which")
        row["server's CPU, us"] = paired.seconds.times(1_000_000)
        rows.append(row | {"over the floor": paired.ratio, "which": which})
    note = f"{rounds} rounds of {times} pairs, each column right after the floor"
    return Table("pairs", "Acquire + release: what Redis does", rows, "commands", [note])


def _verbs(bench: Bench, times: int) -> list[dict[str, Cell]]:
    held = locks.acquire("verbs", ttl=600)
    assert held is not None
    leases = [locks.acquire(f"verbs:{n}", ttl=600) for n in range(500)]
    works: dict[str, Callable[[], object]] = {
        "acquire, refused": lambda: locks.acquire("verbs"),
        "extend": held.extend,
        "get": lambda: locks.get("verbs"),
        "list, first 100 of 501": lambda: locks.list(limit=100),
        "count": locks.count,
    }
    rows = [_row(verb, _counted(bench, work, times), times) for verb, work in works.items()]
    for lease in leases:
        assert lease is not None
        lease.release()
    rows.append(_row("wait in vain: ask, enter the queue, leave", *_in_vain(bench, times // 8)))
    held.release()
    asked, handed, count = _handed_over(bench, times // 8)
    rows.append(_row("wait: ask, enter the queue", asked, count))
    rows.append(_row("release, handed over", handed, count))
    return rows


def _kinds(bench: Bench, times: int) -> Table:
    """Pairs of more than one lock on one server, and of one on a cluster."""

    def slots() -> None:
        lease = locks.acquire("verbs", slots=3)
        assert lease is not None
        lease.release()

    def names() -> None:
        for lease in locks.acquire_all(["verbs:a", "verbs:b", "verbs:c"]) or ():
            lease.release()

    works = {"one lock": _pair, "slots=3": slots, "three names": names}
    rows = [_row(title, _counted(bench, work, times), times) for title, work in works.items()]
    with redis_cluster(Path(bench.folder)) as site:
        with override_settings(TASKLOCK={**settings.TASKLOCK, **site.tasklock}):
            service = locks.using(site.store)
            for _ in range(2):  # The nodes get to know the scripts.
                _pair(service)
            ports = [urlsplit(url).port for url in site.tasklock[site.store]["OPTIONS"]["LOCATION"]]
            counters = [Counter(redis.Redis(port=port)) for port in ports]
            for _ in range(times):
                _pair(service)
            counted = _Sum()
            for counter in counters:
                counted.add(counter.counts())
        rows.append(_row("cluster: one lock", counted.counts, times))
    title = f"{OURS}: acquire + release of several kinds, and on a cluster"
    return Table("kinds", title, rows, plot="commands")


def _pair(service: Any = locks) -> None:
    service.acquire("verbs").release()


def _in_vain(bench: Bench, times: int) -> tuple[Counts, int]:
    def wait() -> None:
        locks.acquire("verbs", wait=0.001)

    return _counted(bench, wait, times), times


def _handed_over(bench: Bench, times: int) -> tuple[Counts, Counts, int]:
    """Two threads that hand one lock to and fro; the two halves of it counted apart."""
    asked, handed = _Sum(), _Sum()
    held = locks.acquire("handed", ttl=600)
    for turn in range(times + 1):
        counter = Counter(bench.redis)
        got: list[Lease | None] = []
        waiter = threading.Thread(
            target=lambda got=got: got.append(locks.acquire("handed", ttl=600, wait=WAIT_SECONDS))
        )
        waiter.start()
        _until_queued(bench, "handed")
        # The looks at the wait queue are counted apart: nothing else asks for the length of one.
        half = counter.counts()
        looks = half.by_command.pop("zcard", 0)
        if turn:
            asked.add(half, trips=looks, commands=looks)
        assert held is not None
        held.release()
        waiter.join()
        if turn:
            handed.add(counter.counts())
        held = got[0]
    assert held is not None
    held.release()
    return asked.counts, handed.counts, times


class _Sum:
    def __init__(self) -> None:
        self.counts = Counts(0, 0, 0, {})

    def add(self, more: Counts, *, trips: int = 0, commands: int = 0) -> None:
        """Add ``more``, but for so many trips and commands."""
        names = {*self.counts.by_command, *more.by_command}
        self.counts = Counts(
            self.counts.trips + more.trips - trips,
            self.counts.commands + more.commands - commands,
            self.counts.microseconds + more.microseconds,
            {
                name: self.counts.by_command.get(name, 0) + more.by_command.get(name, 0)
                for name in names
            },
        )


def _until_queued(bench: Bench, name: str) -> None:
    store: Any = locks.store
    queue = f"{store.key(name)} queue"
    deadline = time.monotonic() + WAIT_SECONDS
    # When it listens it has read the reply to its question. Before, its connection would still be
    # in use, and the release would have to open another one.
    while not (bench.redis.zcard(queue) and store.subscriber.in_use()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody waits in the queue for {name}")
        time.sleep(0.0005)


def _counted(bench: Bench, work: Callable[[], object], times: int) -> Counts:
    work()
    counter = Counter(bench.redis)
    for _ in range(times):
        work()
    return counter.counts()


def _row(title: str, counts: Counts, times: int) -> dict[str, Cell]:
    commands = sorted(counts.by_command.items(), key=lambda item: (-item[1], item[0]))
    return {
        "work": title,
        "round trips": counts.trips / times,
        "commands": counts.commands / times,
        "server's CPU, us": counts.microseconds / times,
        "which": ", ".join(
            name if count == times else f"{name} {count / times:.3g}" for name, count in commands
        ),
    }
