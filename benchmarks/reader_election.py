"""``python -m benchmarks.reader_election``: who should read the subscriber's connection?

In each process one of the waiters reads it for all (`django_tasklock.stores.redis.readers`). The
usual way is a thread that does nothing else. Here both do the same work by turns: some processes,
each with some threads, take one lock as often as they can. Printed is the election over the thread,
each piece of work divided by the one beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console

from example_project.servers import own_redis

from .beside.side import set_up
from .rounds import Spread
from .tables import Cell, Table, show

MODES = ("election", "thread")
SETTINGS = ((2, 1), (1, 8), (2, 8), (4, 4))
"""how many processes, and how many threads in each"""
TURNS = 240
"""how often the lock is taken in one piece of work"""
ROUNDS = 40


def read_in_a_thread() -> None:
    """Replace the election in this process by a thread that reads for all waiters."""
    from django_tasklock._values import clock
    from django_tasklock.stores.redis import readers, subscriber
    from django_tasklock.stores.redis.channel import Channel

    class ReaderThread(readers.Readers):
        def __init__(self) -> None:
            super().__init__()
            self._thread: threading.Thread | None = None
            self._waiters: set[Channel] = set()

        def listen(
            self, channel: Channel, deadline: float, read: Callable[[Channel, float], None]
        ) -> None:
            if self._thread is None:
                self._thread = threading.Thread(target=_read_on, args=(read,), daemon=True)
                self._thread.start()
            self._waiters.add(channel)
            while not channel.news and (left := deadline - clock.now()) > 0:
                channel.wakeup.acquire(timeout=left)
            channel.news = False
            self._waiters.discard(channel)

        def reading(self) -> bool:
            return bool(self._waiters)

    def _read_on(read: Callable[[Channel, float], None]) -> None:
        own = Channel(b"")
        while True:
            own.news = False
            read(own, clock.now() + 3600)

    vars(subscriber)["Readers"] = ReaderThread


def side(mode: str, threads: int) -> None:
    """One process: take the lock as often as each line says."""
    set_up()
    if mode == "thread":
        read_in_a_thread()
    for line in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        made = [threading.Thread(target=_turns, args=(mode, int(line))) for _ in range(threads)]
        for thread in made:
            thread.start()
        for thread in made:
            thread.join()
        print(time.perf_counter() - began, time.process_time() - used, flush=True)


def _turns(name: str, times: int) -> None:
    from django_tasklock import locks

    for _ in range(times):
        lease = locks.acquire(name, ttl=60, wait=60)
        assert lease is not None
        lease.release()


class Team:
    """The processes of one mode."""

    def __init__(self, mode: str, processes: int, threads: int, stack: ExitStack) -> None:
        command = [sys.executable, "-m", "benchmarks.reader_election", mode, str(threads)]
        pipe = subprocess.PIPE
        self._members = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            for _ in range(processes)
        ]

    def do(self, times: int) -> tuple[float, float]:
        """Return the seconds until the last was ready, and the processor seconds of all."""
        for member in self._members:
            print(times, file=member.stdin, flush=True)
        told = [member.stdout.readline().split() for member in self._members if member.stdout]
        return max(float(took) for took, _ in told), sum(float(used) for _, used in told)


def compare(processes: int, threads: int) -> dict[str, Cell]:
    with ExitStack() as stack:
        teams = {mode: Team(mode, processes, threads, stack) for mode in MODES}
        times = TURNS // (processes * threads)
        for team in teams.values():
            team.do(5)
        ratios: list[tuple[float, float]] = []
        for number in range(ROUNDS):
            order = MODES if number % 2 else MODES[::-1]
            told = {mode: teams[mode].do(times) for mode in order}
            (took, used), (took_thread, used_thread) = (told[mode] for mode in MODES)
            ratios.append((took / took_thread, used / used_thread))
    return {
        "processes x threads": f"{processes} x {threads}",
        "time": Spread.of([time for time, _ in ratios]),
        "processor time": Spread.of([used for _, used in ratios]),
    }


def main() -> int:
    with own_redis(needs_own=True) as server:
        os.environ["BENCHMARK_REDIS_URL"] = server.url
        rows = [compare(*setting) for setting in SETTINGS]
    title = "Election of a reader over a thread that reads"
    show(Console(width=120), Table("reader-election", title, rows))
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        side(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
