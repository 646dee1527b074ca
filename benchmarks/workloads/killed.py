"""The holder is killed: when is its lock free, when does the job run again, when does a waiter have
the lock?"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from ..bench import Bench, until
from ..contenders import OURS, OURS_ELSEWHERE, PYTHON_REDIS_LOCK, REDIS_PY, contender
from ..crew import ask, crew
from ..rounds import Spread, turned
from ..tables import Cell, Table
from ..worker import worker

__all__ = ["run"]

LOCK = "killed"
TASK = "django-tasklock, acks_late"


def run(bench: Bench) -> Table:
    rows: list[dict[str, Cell]] = []
    with worker(bench):
        seen = [_kill_child(bench) for _ in range(bench.pick(1, 10))]
    free, again = (Spread.of(each, 1000) for each in zip(*seen, strict=True))
    rows.append({"": f"a task: {TASK}", "lock free, ms": free, "runs again, ms": again})
    ttl, rounds = bench.pick((1, 1), (2, 4))
    names = (OURS, OURS_ELSEWHERE, PYTHON_REDIS_LOCK, REDIS_PY)
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
        "From the kill of a task's pool child, or of a waiter's holder in the middle of its lease "
        f"of {ttl} s. A negative time: before the lease's end."
    )
    return Table("A killed holder", note, rows)


def _kill_child(bench: Bench) -> tuple[float, float]:
    """Seconds until the key is gone, and until the body runs again."""
    from ..site.celery import TASKS

    number = time.monotonic_ns()
    path = bench.folder / f"killed-{number}"
    TASKS[TASK].delay(number, str(path))
    until(lambda: path.exists() and path.read_text().endswith("\n"), 60)
    named = bench.redis.keys(f"*{number}*")
    (key,) = (key for key in named if bench.redis.type(key) == b"string")
    owner = bench.redis.get(key)
    killed = time.monotonic()
    os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
    # Held anew by the next run counts as well: it was free in between.
    until(lambda: bench.redis.get(key) != owner, 30)
    free = time.monotonic() - killed
    until(lambda: path.read_text().count("\n") == 2, 30)
    return free, float(path.read_text().splitlines()[1].split()[1]) - killed


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
