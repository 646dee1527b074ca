"""Readers and a writer: many visitors read a price list at once, and nobody while it changes."""

from __future__ import annotations

import os
import time

from django_tasklock import lock
from example_project.uses.crew import Crew, Shown, in_threads
from example_project.uses.models import Product

READERS = 8


@lock("catalog", ttl=30, wait=60, slots=READERS)
def read_catalog() -> list[int]:
    """Read the stock of each product, one after the other."""
    found = []
    for title in TITLES:
        found.append(Product.objects.get(title=title).stock)
        time.sleep(0.01)
    return found


@lock("catalog", ttl=30, wait=60, slots=READERS, exclusive=True)
def import_catalog(stock: int) -> None:
    """Give each product its new stock, one after the other."""
    for title in TITLES:
        Product.objects.filter(title=title).update(stock=stock)
        time.sleep(0.01)


# ------------------------------------------------------------------------------ shown

TITLES = ["apples", "pears", "plums", "quinces"]
VISITORS = 8
"""in each process, and one import beside them"""
READINGS = 3
"""of each visitor"""


def open_shop() -> list[list[int]]:
    """What the visitors have read, beside an import."""

    def one(number: int) -> list[list[int]]:
        if number < VISITORS:
            return [read_catalog() for _ in range(READINGS)]
        import_catalog(os.getpid())
        return []

    return [each for found in in_threads(VISITORS + 1, one) for each in found]


def show(crew: Crew) -> Shown:
    Product.objects.bulk_create(Product(title=title, stock=0) for title in TITLES)
    read = [each for found in crew.at_once("catalog", "open_shop") for each in found]
    mixed = sum(len(set(each)) > 1 for each in read)
    shown = Shown(
        "readers and a writer",
        f"{len(read)} readings beside {len(crew.members)} imports: {mixed} saw half of an import",
    )
    if mixed:
        shown.problems.append(f"{mixed} readings saw half of an import")
    return shown
