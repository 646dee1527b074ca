"""Many leases kept alive by one process: threads, memory, round trips, processor time, losses."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ..bench import Bench
from ..crew import ask, crew
from ..tables import Table

__all__ = ["run"]


def run(bench: Bench) -> Table:
    """Hold them in a process of their own, and look from here."""
    count, ttl = bench.pick((100, 3), (10_000, 30))
    with crew(1) as (holder,):
        threads, resident, _ = ask(holder, usage)
        ask(holder, take, count, ttl)
        time.sleep(ttl / 6)  # A renewal is due each third of the ttl: three are inside.
        began, counts, start = ask(holder, usage), bench.counts(), time.monotonic()
        time.sleep(ttl)
        seconds, asked = time.monotonic() - start, bench.counts().since(counts)
        ended, held = ask(holder, usage), ask(holder, still_held)
    row = {
        "leases": count,
        "lost": count - held,
        "threads": ended[0] - threads,
        "memory, MiB": (ended[1] - resident) / 2**20,
        # A request for hundreds of leases is read in pieces: scripts are counted, not reads.
        "round trips/s": asked.scripts / seconds,
        "CPU, %": (ended[2] - began[2]) / seconds * 100,
        "server's CPU, %": asked.seconds / seconds * 100,
    }
    note = (
        f"Leases of {ttl} s in one process, watched for {ttl} s. Threads and memory: in addition "
        "to those before."
    )
    return Table("Renewal", note, [row])


_held: list[Any] = []
"""in the holding process"""


def take(count: int, ttl: int) -> None:
    locks = import_module("django_tasklock").locks
    _held.extend(locks.acquire(f"renewed:{n}", ttl=ttl, renew=True) for n in range(count))


def still_held() -> int:
    return sum(lease is not None and lease.held for lease in _held)


def usage() -> tuple[int, int, float]:
    """Threads, bytes of the machine's memory, seconds of processor time so far."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/task")), resident, time.process_time()
