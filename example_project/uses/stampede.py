"""Cache stampede: when the figures of a page expire, one visitor computes them again."""

from __future__ import annotations

import time

from django.core.cache import cache

from django_tasklock.caching import cached_once
from example_project.uses.crew import Crew, Shown, in_threads, times
from example_project.videos import ledger
from example_project.videos.models import Order


def sales() -> dict[str, int]:
    """What the front page shows: from the cache, at most six minutes old."""
    return cached_once("sales", count_sales, ttl=300, stale=60, wait=30)


def count_sales() -> dict[str, int]:
    """Ask the database, slowly."""
    ledger.append("sales")
    time.sleep(0.5)
    return {"orders": Order.objects.count()}


# ------------------------------------------------------------------------------ shown

VISITORS = 25
"""in each process"""


def visit() -> list[dict[str, int]]:
    return in_threads(VISITORS, lambda _: sales())


def show(crew: Crew) -> Shown:
    cache.delete("sales")
    before = len(ledger.read("sales"))
    seen = [figures for process in crew.at_once("stampede", "visit") for figures in process]
    computed = len(ledger.read("sales")) - before
    found = f"{len(seen)} visitors miss a value at once: computed {times(computed)}"
    shown = Shown("cache stampede", found)
    if computed != 1:
        shown.problems.append(f"the value was computed {times(computed)}")
    if seen != [{"orders": Order.objects.count()}] * len(seen):
        shown.problems.append("not every visitor saw the figures")
    return shown
