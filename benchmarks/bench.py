"""What every workload is given: a Redis of its own, the site, and how much to do."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import django
import redis

from example_project.servers import own_redis

__all__ = ["Bench", "open_bench", "set_up_site"]

T = TypeVar("T")


@dataclass
class Bench:
    """One run of the benchmarks.

    ``folder`` is for files that go away with the run; ``said`` collects what the reader of the
    tables should know, such as a peer that is not installed.
    """

    url: str
    quick: bool
    folder: str
    redis: Any
    said: list[str] = field(default_factory=list)

    def pick(self, quick: T, real: T) -> T:
        """How much of something: for a test, or for a real run."""
        return quick if self.quick else real

    def say(self, text: str) -> None:
        if text not in self.said:
            self.said.append(text)


@contextlib.contextmanager
def open_bench(*, quick: bool) -> Iterator[Bench]:
    """Start a Redis, set the site up on it, and end the Redis afterwards."""
    with own_redis(needs_own=True) as server, tempfile.TemporaryDirectory() as folder:
        os.environ["BENCHMARK_REDIS_URL"] = server.url
        os.environ["BENCHMARK_DATABASE"] = f"{folder}/site.sqlite3"
        set_up_site()
        yield Bench(server.url, quick, folder, redis.Redis.from_url(server.url))


def set_up_site() -> None:
    """Set Django up in this process, by what `open_bench` put into the environment."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"
    django.setup()
