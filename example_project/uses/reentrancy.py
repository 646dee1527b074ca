"""Re-entrancy: a function that holds a lock calls another one that takes the same lock."""

from __future__ import annotations

import time
from collections.abc import Sequence

from django_tasklock import lock
from example_project.uses.crew import Crew, Shown, in_threads
from example_project.uses.models import Product


@lock("stock:{product_id}", ttl=30, wait=30, reentrant=True)
def take(product_id: int, count: int) -> bool:
    """Take so many from the stock, if there are so many."""
    stock = Product.objects.get(pk=product_id).stock
    if stock < count:
        return False
    time.sleep(0.02)  # a warehouse with a slow answer
    Product.objects.filter(pk=product_id).update(stock=stock - count)
    return True


def take_set(product_id: int, parts: Sequence[int]) -> bool:
    """Take all parts or none: nobody else takes one between the look and the last part."""
    with lock(f"stock:{product_id}", ttl=30, wait=30, reentrant=True):
        if Product.objects.get(pk=product_id).stock < sum(parts):
            return False
        return all(take(product_id, count) for count in parts)


# ------------------------------------------------------------------------------ shown

CUSTOMERS = 4
"""in each process"""
PARTS = [1, 2]
SETS = 10
"""for which the stock suffices"""


def order_sets() -> int:
    """How many of the customers got their set."""
    product = Product.objects.latest("pk").pk
    return sum(in_threads(CUSTOMERS, lambda _: take_set(product, PARTS)))


def show(crew: Crew) -> Shown:
    product = Product.objects.create(title="a chair", stock=SETS * sum(PARTS))
    asked, sold = CUSTOMERS * len(crew.members), sum(crew.at_once("reentrancy", "order_sets"))
    product.refresh_from_db()
    shown = Shown(
        "re-entrancy",
        f"{asked} customers want a set, stock for {SETS}: {sold} sold, {product.stock} parts left",
    )
    if (sold, product.stock) != (SETS, 0):
        shown.problems.append(f"{sold} sets sold of {SETS}, and {product.stock} parts left")
    return shown
