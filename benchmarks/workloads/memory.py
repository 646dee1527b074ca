"""What one held lease takes, in Redis and in the process that holds it."""

from __future__ import annotations

import gc
import time
import tracemalloc

from django_tasklock import Lease, locks

from ..bench import Bench
from ..tables import Cell, Table

__all__ = ["run"]


def run(bench: Bench) -> list[Table]:
    rows = [
        _measure(bench, count, renew=renew)
        for renew in (False, True)
        for count in bench.pick([100, 1_000], [1_000, 10_000, 100_000])
    ]
    return [Table("memory", "Bytes a held lease takes", rows, "in all")]


def _measure(bench: Bench, count: int, *, renew: bool) -> dict[str, Cell]:
    bench.redis.flushall()  # What is still being emptied would count against this.
    # The first makes what there is once: the store, the connection, the renewal thread.
    first = locks.acquire("memory:first", ttl=600, renew=renew)
    gc.collect()
    before = _settled(bench)
    tracemalloc.start()
    mine = tracemalloc.get_traced_memory()[0]
    leases: list[Lease | None] = [
        locks.acquire(f"memory:video:{n}", ttl=600, renew=renew) for n in range(count)
    ]
    gc.collect()
    here = (tracemalloc.get_traced_memory()[0] - mine) / count
    tracemalloc.stop()
    there = (_settled(bench) - before) / count
    for lease in [first, *leases]:
        assert lease is not None
        assert lease.release()
    left = bench.redis.dbsize()
    return {
        "leases": f"{count:,}{', renewed' if renew else ''}",
        "in Redis": there,
        "in the process": here,
        "in all": there + here,
        "keys left": left,
    }


def _settled(bench: Bench) -> int:
    """Memory in use; hash tables that grow are moved bit by bit, and counted twice meanwhile."""
    deadline, last = time.monotonic() + 5, -1
    while time.monotonic() < deadline:
        used = int(bench.redis.info("memory")["used_memory"])
        if used == last:
            break
        last = used
        time.sleep(0.2)
    return last
