"""What every workload is given: a Redis of its own, the site, and how much to do."""

from __future__ import annotations

import operator
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import django
import redis

from example_project.servers import own_redis

__all__ = ["Bench", "Counts", "open_bench", "set_up_site", "until"]

T = TypeVar("T")


class Counts(NamedTuple):
    """What Redis has done so far, by its own count, a look at which is a round trip too."""

    trips: int
    """reads from sockets: one for each request that is no longer than 16 KiB"""
    commands: int
    """those inside scripts too"""
    scripts: int
    seconds: float
    """of processor time"""

    def since(self, before: Counts) -> Counts:
        return Counts(*map(operator.sub, self, before))


@dataclass(frozen=True)
class Bench:
    """One run of the benchmarks. The ``folder`` goes away with it."""

    url: str
    quick: bool
    folder: Path
    redis: Any

    def pick(self, quick: T, real: T) -> T:
        """How much of something: to see that it works, or to measure it."""
        return quick if self.quick else real

    def counts(self) -> Counts:
        pipe = self.redis.pipeline(transaction=False)
        for part in ("stats", "commandstats", "cpu"):
            pipe.info(part)
        stats, by_command, cpu = pipe.execute()
        calls = {name: by["calls"] for name, by in by_command.items() if name != "cmdstat_info"}
        seconds = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        scripts = calls.get("cmdstat_evalsha", 0)
        return Counts(stats["total_reads_processed"], sum(calls.values()), scripts, seconds)


@contextmanager
def open_bench(*, quick: bool) -> Iterator[Bench]:
    """Start a Redis, set the site up on it, and end the Redis afterwards."""
    with own_redis(needs_own=True) as server, tempfile.TemporaryDirectory() as folder:
        os.environ["BENCHMARK_REDIS_URL"] = server.url
        os.environ["BENCHMARK_DATABASE"] = f"{folder}/site.sqlite3"
        set_up_site()
        yield Bench(server.url, quick, Path(folder), redis.Redis.from_url(server.url))


def set_up_site() -> None:
    """Set Django up in this process, by what `open_bench` put into the environment."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"
    django.setup()


def until(what: Callable[[], object], seconds: float, why: Callable[[], str] = str) -> None:
    """Return when ``what`` is true. Raises `TimeoutError`, with ``why()``."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s. {why()}")
        time.sleep(0.001)
