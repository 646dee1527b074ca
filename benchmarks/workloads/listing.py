"""A page of the locks, and their number, among many keys that are no locks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management import call_command

from django_tasklock import locks

from ..bench import Bench
from ..rounds import Spread, interleaved
from ..tables import Cell, Table

__all__ = ["run"]

PAGE_LOCKS = 100
OTHER_KEYS_SCRIPT = """
for i = ARGV[1], ARGV[2] do redis.call('SET', 'other:' .. i, 'a value of somebody else') end
"""


def run(bench: Bench) -> Table:
    few, many, others = bench.pick((200, 1_000, 10_000), (1_000, 100_000, 1_000_000))
    step, rounds = 10_000, bench.pick(2, 30)
    for start in range(0, others, step):
        bench.redis.eval(OTHER_KEYS_SCRIPT, 0, start, start + step - 1)
    for alias, count in (("few", few), ("many", many)):
        for number in range(count):
            assert locks.using(alias).acquire(f"video:{number}", ttl=3600 + number / 100)
    rows: list[dict[str, Cell]] = []
    for title, work in WORKS.items():
        works = {alias: partial(_seconds, work, alias) for alias in ("few", "many")}
        (grown,) = interleaved(works, "few", rounds)["many"]
        ms = Spread.of(grown.values, 1000)
        rows.append({"": title, "ms": ms, f"over {few:,} locks": grown.ratio})
    note = (
        f"{many:,} locks among {others:,} other keys, and the time over that with {few:,} locks. "
        f"{rounds} rounds."
    )
    return Table("The list", note, rows)


def _first_page(alias: str) -> None:
    found = locks.using(alias).list(limit=PAGE_LOCKS)
    assert len([(info.name, info.owner.pid) for info in found]) == PAGE_LOCKS


def _command(alias: str) -> None:
    output = io.StringIO()
    call_command("locks", "list", store=alias, limit=PAGE_LOCKS, format="csv", stdout=output)
    assert output.getvalue().count("video:") >= PAGE_LOCKS


WORKS: dict[str, Callable[[str], object]] = {
    "`locks.list(limit=100)`": _first_page,
    "`locks.count()`": lambda alias: locks.using(alias).count(),
    "`manage.py locks list --limit 100`": _command,
}


def _seconds(work: Callable[..., object], *arguments: Any) -> tuple[float]:
    start = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - start,)
