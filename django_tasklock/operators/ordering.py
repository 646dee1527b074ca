"""The orders in which the command and the admin list locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .._values.lock_info import LockInfo

__all__ = ["ORDERS", "in_order"]

ORDERS = ("ttl", "name", "age", "-ttl", "-name", "-age")


def in_order(infos: Iterable[LockInfo], order: str) -> list[LockInfo]:
    """Return the locks in one of `ORDERS`; with a ``-`` in the reverse order.

    A key that never expires has the longest TTL, and one whose age is not known is the oldest.
    """
    return sorted(
        infos, key=_LOCK_SORT_KEYS[order.removeprefix("-")], reverse=order.startswith("-")
    )


def _ttl(info: LockInfo) -> tuple[bool, float]:
    return info.ttl is None, info.ttl or 0.0


def _age(info: LockInfo) -> tuple[bool, float]:
    # By the time of acquisition: the age itself grows while it sorts.
    return info.acquired_at is None, -info.acquired_at.timestamp() if info.acquired_at else 0.0


_LOCK_SORT_KEYS: dict[str, Callable[[LockInfo], Any]] = {
    "ttl": _ttl,
    "name": lambda info: info.name,
    "age": _age,
}
