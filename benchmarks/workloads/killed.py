"""The holder is killed: when is its lock free, when does the job run again, when does a waiter have
the lock?"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from ..bench import Bench, until
from ..contenders import OURS, OURS_ELSEWHERE, PYTHON_REDIS_LOCK, REDIS_PY, contender, installed
from ..crew import ask, crew
from ..rounds import Spread, turned
from ..tables import Cell, Table
from ..worker import worker

__all__ = ["run"]

LOCK = "killed"
A_WHILE_SECONDS = 2.0
"""seconds for which a peer may notice the death of a pool child"""
OUR_TASK = "django-tasklock, acks_late"
THEIR_TASKS = ("cache.add and delete", "celery-once")


def run(bench: Bench) -> Table:
    from ..site.celery import TASKS

    rounds = bench.pick(1, 10)
    rows: list[dict[str, Cell]] = []
    with worker(bench):
        for name in (OUR_TASK, *THEIR_TASKS):
            if name in TASKS:
                several = rounds if name == OUR_TASK else 1
                seen = [_kill_child(bench, name) for _ in range(several)]
                rows.append({"": f"a task: {name}", **_cells(seen)})
    ttl, rounds = bench.pick((1, 1), (2, 4))
    names = installed(OURS, OURS_ELSEWHERE, PYTHON_REDIS_LOCK, REDIS_PY)
    late: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in turned(names, number):
            late[name].append(_kill_holder(bench, name, ttl))
    for name, times in late.items():
        since_kill, since_end = (Spread.of(each, 1000) for each in zip(*times, strict=True))
        rows.append(
            {
                "": f"a waiter: {name}",
                "waiter has it, ms": since_kill,
                "after the lease's end, ms": since_end,
            }
        )
    note = (
        "Times are from the kill. A task's pool child is killed at work; where the lock was still "
        f"there after {A_WHILE_SECONDS:.0f} s, it says for how much longer. A waiter's holder is "
        f"killed in the middle of its lease of {ttl} s."
    )
    return Table("A killed holder", note, rows)


def _cells(seen: list[tuple[float | None, float | None, str]]) -> dict[str, Cell]:
    free, again = ([each[i] for each in seen if each[i] is not None] for i in (0, 1))
    left = seen[0][2]
    return {
        "lock free, ms": left or Spread.of(free, 1000),  # type: ignore[arg-type]
        "runs again, ms": Spread.of(again, 1000),  # type: ignore[arg-type]
    }


def _kill_child(bench: Bench, name: str) -> tuple[float | None, float | None, str]:
    """Seconds until the key is gone, and until the body runs again; what the key had left."""
    from ..site.celery import TASKS

    number = time.monotonic_ns()
    path = bench.folder / f"killed-{number}"
    TASKS[name].delay(number, str(path))
    until(lambda: path.exists() and path.read_text().endswith("\n"), 60)
    named = bench.redis.keys(f"*{number}*")
    (key,) = (key for key in named if bench.redis.type(key) == b"string")
    owner, free = bench.redis.get(key), None
    killed = time.monotonic()
    os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
    deadline = killed + (30 if name == OUR_TASK else A_WHILE_SECONDS)
    while time.monotonic() < deadline and path.read_text().count("\n") < 2:
        # Held anew by the next run counts as well: it was free in between.
        if free is None and bench.redis.get(key) != owner:
            free = time.monotonic() - killed
        time.sleep(0.0005)
    lines = path.read_text().splitlines()
    again = float(lines[1].split()[1]) - killed if len(lines) > 1 else None
    return free, again, "" if free is not None else f"in {bench.redis.ttl(key):,} s"


def _kill_holder(bench: Bench, name: str, ttl: int) -> tuple[float, float]:
    """Seconds from the kill, and from the lease's end, until this process has the lock."""
    column = contender(name, bench.url, ttl)
    with crew(1) as (holder,):
        killed = ask(holder, hold, name, bench.url, ttl) + ttl / 2
        holder.send((die, (killed,)))
        held = column.acquire(LOCK, wait=True)
        now = time.monotonic()
        column.release(held)
    assert now > killed, f"{name}: two hold one lock"
    return now - killed, now - killed - ttl / 2


_held: list[Any] = []
"""in the holding process: a lock object that nobody refers to might be released"""


def hold(name: str, url: str, ttl: int) -> float:
    """Take the lock; since when it is held, by the clock that all processes share."""
    column = contender(name, url, ttl)
    since = time.monotonic()
    _held.append(column.acquire(LOCK))
    assert _held[0] is not None
    return since


def die(when: float) -> None:
    """In the middle of what the process does."""
    time.sleep(max(0.0, when - time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
