"""The orders in which locks are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .lock_info import LockInfo

__all__ = ["ORDERS", "in_order"]

ORDERS = (
    "ttl", "name", "age", "waiters", "wait", "-ttl", "-name", "-age", "-waiters", "-wait",
)  # fmt: skip


def in_order(infos: Iterable[LockInfo], order: str, most: int | None = None) -> list[LockInfo]:
    """Return the locks in one of `ORDERS`, ``most`` of them (None: all); with a ``-`` in the
    reverse order.

    A key that never expires has the longest TTL, and one whose age is not known is the oldest. A
    lock for which nobody is known to wait has the shortest wait.
    """
    key = _LOCK_SORT_KEYS[order.removeprefix("-")]
    return sorted(infos, key=key, reverse=order.startswith("-"))[:most]


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
