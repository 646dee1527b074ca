"""The first page of the locks, and all of them, among many keys that are no locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django_tasklock import Lease, LockInfo, locks

from ..bench import Bench
from ..counting import Counter
from ..peers import OURS
from ..rounds import interleaved
from ..tables import Cell, Table

__all__ = ["run"]

PAGE_LOCKS = 100
OTHER_KEYS_SCRIPT = """
for i = ARGV[1], ARGV[2] do redis.call('SET', 'other:' .. i, 'a value of somebody else') end
"""


def run(bench: Bench) -> list[Table]:
    others = bench.pick(2_000, 1_000_000)
    step = 10_000
    for start in range(0, others, step):
        bench.redis.eval(OTHER_KEYS_SCRIPT, 0, start, min(others, start + step) - 1)
    tables = []
    for count in bench.pick([20, 200], [100, 1_000, 10_000, 100_000]):
        with _held(count):
            tables.append(_page(bench, count, others))
            if count == bench.pick(200, 100_000):
                tables.append(_whole(bench, count))
    return tables


def _page(bench: Bench, count: int, others: int) -> Table:
    index = Index(bench.redis)
    works: dict[str, Callable[[], object]] = {
        "ordered index, records not read": lambda: index.page(PAGE_LOCKS),
        "ordered index, records decoded": lambda: index.decoded(PAGE_LOCKS),
        OURS: lambda: locks.list(limit=PAGE_LOCKS),
        f"{OURS}, and every field read": lambda: read(locks.list(limit=PAGE_LOCKS)),
        f"{OURS}: count": locks.count,
        "SCAN MATCH": index.scanned,
        "KEYS": lambda: bench.redis.keys(index.pattern),
    }
    found = locks.list(limit=PAGE_LOCKS)
    assert len(found) == min(count, PAGE_LOCKS), f"{len(found)} of {count} were listed"
    assert [info.name for info in found] == [info.name for info in index.decoded(PAGE_LOCKS)]
    slow = {name: works.pop(name) for name in ("SCAN MATCH", "KEYS")}
    rows = _rows(bench, works, index, bench.pick(2, 60))
    rows += _rows(bench, slow, index, bench.pick(1, 3))
    title = f"First page of {PAGE_LOCKS} of {count:,} locks, among {others:,} other keys"
    return Table(f"listing-{count}", title, rows, "over the index")


def _whole(bench: Bench, count: int) -> Table:
    index = Index(bench.redis)
    works: dict[str, Callable[[], object]] = {
        "ordered index, records not read": lambda: index.page(count),
        "ordered index, records decoded": lambda: index.decoded(count),
        OURS: locks.list,
        f"{OURS}, and every field read": lambda: read(locks.list()),
    }
    assert len(locks.list()) == count
    rows = _rows(bench, works, index, bench.pick(1, 7), count)
    return Table("listing-whole", f"All of {count:,} locks", rows, "over the index")


def _rows(
    bench: Bench,
    works: dict[str, Callable[[], object]],
    index: Index,
    rounds: int,
    size: int = PAGE_LOCKS,
) -> list[dict[str, Cell]]:
    trips = {}
    for name, work in works.items():
        counter = Counter(bench.redis)
        work()
        trips[name] = counter.counts().trips
    measured = interleaved(
        lambda: _seconds(lambda: index.page(size)),
        {name: partial(_seconds, work) for name, work in works.items()},
        rounds,
    )
    return [
        {
            "column": name,
            "round trips": trips[name],
            "ms": m.seconds.times(1000),
            "over the index": m.ratio,
        }
        for name, m in measured.items()
    ]


class Index:
    """The least that can list: the sorted set and the records, by two plain commands."""

    CHUNK = 1000

    def __init__(self, client: Any) -> None:
        self._redis = client
        store: Any = locks.store
        self._store = store
        self.pattern = f"{store.key('')}*"

    def page(self, size: int) -> tuple[list[Any], list[Any]]:
        now = int(time.time() * 1000)
        found = self._redis.zrangebyscore(
            self._store.keyspace.index, now, "+inf", start=0, num=size, withscores=True
        )
        values: list[Any] = []
        for start in range(0, len(found), self.CHUNK):
            names = [name.decode() for name, _ in found[start : start + self.CHUNK]]
            values += self._redis.mget([self._store.key(name) for name in names])
        return found, values

    def scanned(self) -> list[Any]:
        return list(self._redis.scan_iter(match=self.pattern, count=1000))

    def decoded(self, size: int) -> list[Any]:
        """The page with its records as `LockInfo`, every field of it."""
        found, values = self.page(size)
        return read(
            self._store.records.info(name.decode(), value, end / 1000)
            for (name, end), value in zip(found, values, strict=True)
        )


def read(infos: Iterable[LockInfo]) -> list[LockInfo]:
    """All of them, with what their records say, which is decoded when it is looked at."""
    found = list(infos)
    for info in found:
        _ = info.owner
    return found


@contextmanager
def _held(count: int) -> Iterator[None]:
    leases: list[Lease | None] = [
        locks.acquire(f"listed:{n}", ttl=3600 + n / 100) for n in range(count)
    ]
    try:
        yield
    finally:
        for lease in leases:
            assert lease is not None
            lease.release()


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
