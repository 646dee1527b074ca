"""The orders in which locks are listed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .lock_info import LockInfo

__all__ = ["ORDERS", "first_by", "first_in_order", "in_order"]

T = TypeVar("T")

ORDERS = (
    "ttl", "name", "age", "waiters", "wait", "-ttl", "-name", "-age", "-waiters", "-wait",
)  # fmt: skip


def in_order(infos: Iterable[LockInfo], order: str) -> list[LockInfo]:
    """Return the locks in one of `ORDERS`; with a ``-`` in the reverse order.

    A key that never expires has the longest TTL, and one whose age is not known is the oldest. A
    lock for which nobody is known to wait has the shortest wait.
    """
    return first_in_order(infos, order, None)


def first_in_order(infos: Iterable[LockInfo], order: str, most: int | None) -> list[LockInfo]:
    """Return the first ``most`` (None: all) of what `in_order` returns, and keep no others."""
    key = _LOCK_SORT_KEYS[order.removeprefix("-")]
    return first_by(key, infos, most, backwards=order.startswith("-"))


def first_by(
    key: Callable[[T], Any], items: Iterable[T], most: int | None, *, backwards: bool
) -> list[T]:
    """Return the first ``most`` (None: all) of the items sorted by ``key``, and keep no others."""
    if most is None:
        return sorted(items, key=key, reverse=backwards)
    return (heapq.nlargest if backwards else heapq.nsmallest)(most, items, key=key)


def _ttl(info: LockInfo) -> tuple[bool, float]:
    return info.ttl is None, info.ttl or 0.0


def _age(info: LockInfo) -> tuple[bool, float]:
    # By the time of acquisition: the age itself grows while it sorts.
    return info.acquired_at is None, -info.acquired_at.timestamp() if info.acquired_at else 0.0


def _wait(info: LockInfo) -> tuple[bool, float]:
    since = info.waiting_since
    return since is not None, -since.timestamp() if since else 0.0


_LOCK_SORT_KEYS: dict[str, Callable[[LockInfo], Any]] = {
    "ttl": _ttl,
    "name": lambda info: info.name,
    "age": _age,
    "waiters": lambda info: info.waiters or 0,
    "wait": _wait,
}
