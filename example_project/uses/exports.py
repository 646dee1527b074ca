"""Bounded concurrency: a few exports of a tenant at once, so that no tenant slows the others."""

from __future__ import annotations

import time

from django_tasklock import lock
from example_project.uses.crew import Crew, Shown, in_threads
from example_project.uses.models import Product

AT_ONCE = 2


@lock("export:{tenant}", ttl=30, wait=60, slots=AT_ONCE)
def export(tenant: str) -> tuple[float, float]:
    """Export what a tenant has. Returns when it began and when it ended."""
    began = time.time()
    list(Product.objects.filter(title__startswith=tenant))
    time.sleep(0.05)  # to write the file
    return began, time.time()


# ------------------------------------------------------------------------------ shown

EXPORTS = 4
"""in each process"""


def export_all() -> list[tuple[float, float]]:
    """When each of the exports began and ended."""
    return in_threads(EXPORTS, lambda _: export("acme"))


def show(crew: Crew) -> Shown:
    runs = [run for runs in crew.at_once("exports", "export_all") for run in runs]
    # Of one that ends at the moment at which another begins, the end comes first.
    changes = sorted([(began, 1) for began, _ in runs] + [(ended, -1) for _, ended in runs])
    most = running = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    shown = Shown(
        "bounded concurrency",
        f"{len(runs)} exports of one tenant, {AT_ONCE} at once allowed: {most} ran at once",
    )
    if most != AT_ONCE:
        shown.problems.append(f"{most} exports ran at once, and not {AT_ONCE}")
    return shown
