"""Tasks that wait for locks on one event loop: how long it stands still, and what they cost."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import redis
import redis.asyncio

from django_tasklock import lock

from ..bench import Bench, set_up_site
from ..counting import Counter
from ..peers import OURS
from ..rounds import Spread, turned
from ..tables import Cell, Table

__all__ = ["run"]

PEER = "redis-py's asyncio Lock"
LOCKS = 10
MOST_CONNECTIONS = 10_000
TTL_SECONDS = 600
SETTLED_SECONDS = 1.0
"""a time in which all tasks have got so far that they wait"""
TICK_SECONDS = 0.001

MakeLock = Callable[[str], AbstractAsyncContextManager[Any]]


def run(bench: Bench) -> list[Table]:
    tasks, rounds = bench.pick((30, 1), (1_000, 5))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in MAKERS}
    for turn in range(rounds):
        for name in turned(list(MAKERS), turn):
            found[name].append(_measure(bench, name, tasks))
    rows: list[dict[str, Cell]] = [
        {"column": name} | {key: Spread.of([one[key] for one in all_of]) for key in all_of[0]}
        for name, all_of in found.items()
    ]
    title = f"{tasks:,} tasks of one event loop wait for {LOCKS} locks, then each has its turn"
    note = (
        "A stall is a time for which the loop ran nothing else, seen by a task that sleeps for "
        f"{TICK_SECONDS * 1000:.0f} ms again and again. {rounds} runs, a process each; what the "
        "first call imports is not counted."
    )
    return [Table("event-loop", title, rows, "longest stall, ms", [note])]


def _measure(bench: Bench, name: str, tasks: int) -> dict[str, float]:
    """What one run shows, its locks being held from here until all wait."""
    bench.redis.flushall()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(name, bench.url, tasks, theirs), daemon=True)
    child.start()
    theirs.close()  # So that we hear of its end.
    try:
        ours.recv()  # It waits.
        counter = Counter(bench.redis)
        time.sleep(SETTLED_SECONDS)
        waited = counter.counts()
        ours.send("release")
        seconds, stall, threads = ours.recv()
        worked = counter.counts()
    finally:
        child.join(60)
        if child.is_alive():
            child.kill()
    return {
        "longest stall, ms": stall * 1_000,
        "ms a turn": seconds / tasks * 1_000,
        "commands a turn": worked.commands / tasks,
        "commands/s while held": waited.commands / SETTLED_SECONDS,
        "threads more": threads,
    }


def _child(name: str, url: str, tasks: int, pipe: Any) -> None:
    set_up_site()
    asyncio.run(_tasks(MAKERS[name](url), tasks, pipe))


async def _tasks(make: MakeLock, tasks: int, pipe: Any) -> None:
    before = _threads()
    held = [make(f"waited:{number}") for number in range(LOCKS)]
    for one in held:
        await one.__aenter__()
    stop = asyncio.Event()
    watch = asyncio.create_task(_longest_stall(stop))
    waiting = [asyncio.create_task(_turn(make(f"waited:{n % LOCKS}"))) for n in range(tasks)]
    await asyncio.sleep(SETTLED_SECONDS)
    threads = _threads() - before
    pipe.send("waiting")
    await _received(pipe)
    start = time.perf_counter()
    for one in held:
        await one.__aexit__(None, None, None)
    await asyncio.gather(*waiting)
    seconds = time.perf_counter() - start
    stop.set()
    pipe.send((seconds, await watch, threads))


async def _turn(one: AbstractAsyncContextManager[Any]) -> None:
    async with one:
        await asyncio.sleep(0)


async def _longest_stall(stop: asyncio.Event) -> float:
    longest = 0.0
    while not stop.is_set():
        before = time.perf_counter()
        await asyncio.sleep(TICK_SECONDS)
        longest = max(longest, time.perf_counter() - before - TICK_SECONDS)
    return longest


def _received(pipe: Any) -> Awaitable[Any]:
    """What comes through the pipe; no thread waits for it."""
    loop = asyncio.get_running_loop()
    come: asyncio.Future[Any] = loop.create_future()

    def ready() -> None:
        loop.remove_reader(pipe.fileno())
        come.set_result(pipe.recv())

    loop.add_reader(pipe.fileno(), ready)
    return come


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _ours(_url: str) -> MakeLock:
    return lambda name: lock(name, ttl=TTL_SECONDS, wait=None)


def _redis_py(url: str) -> MakeLock:
    # Its pool has 100 at most otherwise, and raises for the 101st.
    client = redis.asyncio.Redis.from_url(url, max_connections=MOST_CONNECTIONS)
    return lambda name: client.lock(name, timeout=TTL_SECONDS)


MAKERS: dict[str, Callable[[str], MakeLock]] = {OURS: _ours, PEER: _redis_py}
