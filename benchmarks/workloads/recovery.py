"""The pool child is killed while it holds: when is the lock free, when does the job run again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from ..bench import Bench
from ..rounds import Spread
from ..tables import Cell, Table
from ..workers import until, worker

__all__ = ["run"]

OUR_COLUMNS = ("django-tasklock, acks_late",)
PEER_COLUMNS = ("cache.add + delete", "celery-once", "celery-singleton", "celery-heimdall")
A_WHILE_SECONDS = 2.0
"""seconds for which a peer may notice"""


def run(bench: Bench) -> list[Table]:
    from ..site.celery import TASKS

    rows: list[dict[str, Cell]] = []
    with worker(bench):
        for name in (*OUR_COLUMNS, *PEER_COLUMNS):
            if name not in TASKS:
                bench.say(f"{name} is not installed, and left out")
                continue
            rounds = bench.pick(1, 20) if name in OUR_COLUMNS else 1
            rows.append(_row(name, [_measure(bench, name, TASKS[name], n) for n in range(rounds)]))
    return [Table("recovery", "A pool child is killed while it holds", rows, "free, ms")]


def _row(name: str, seen: list[tuple[float | None, float | None, str]]) -> dict[str, Cell]:
    free = [free * 1000 for free, _, _ in seen if free is not None]
    again = [again * 1000 for _, again, _ in seen if again is not None]
    return {
        "column": name,
        "free, ms": Spread.of(free) if free else None,
        "worst free, ms": max(free) if free else None,
        "runs again, ms": Spread.of(again) if again else None,
        "worst again, ms": max(again) if again else None,
        "else the lock stays": seen[0][2],
    }


def _measure(
    bench: Bench, name: str, task: Any, number: int
) -> tuple[float | None, float | None, str]:
    """Seconds from the kill until the key is gone, and until the body runs again."""
    path = Path(bench.folder) / f"recovery-{name.replace(' ', '-')}-{number}"
    before = set(bench.redis.keys())
    number += 1_000_000
    task.delay(number, str(path))
    until(lambda: path.exists() and path.read_text().endswith("\n"), 60)
    pid = int(path.read_text().split()[0])
    key = _key(bench, set(bench.redis.keys()) - before, str(number))
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    owner, free = bench.redis.get(key), None
    ours = name in OUR_COLUMNS
    deadline = killed + (30 if ours else A_WHILE_SECONDS)
    while time.monotonic() < deadline:
        # Held anew by the next run counts as well: it was free in between.
        if free is None and bench.redis.get(key) != owner:
            free = time.monotonic() - killed
        if ours and path.read_text().count("\n") > 1:
            break
        time.sleep(0.0005)
    lines = path.read_text().splitlines()
    again = float(lines[1].split()[1]) - killed if len(lines) > 1 else None
    left = bench.redis.ttl(key) if free is None else -2
    stays = {-2: "", -1: "for ever"}.get(left, f"{left:,} s")
    bench.redis.delete(key)
    return free, again, stays


def _key(bench: Bench, new: set[bytes], number: str) -> bytes:
    """The lock among the keys that have appeared: a plain value, named after the job."""
    plain = [key for key in new if bench.redis.type(key) == b"string"]
    named = [key for key in plain if number.encode() in key] or plain
    assert len(named) == 1, f"which one is the lock: {named}"
    return named[0]
