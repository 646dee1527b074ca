"""In which order locks are listed, by the command and the admin alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .lease import LockInfo

__all__ = ["ORDERS", "in_order"]

ORDERS = ("ttl", "name", "age", "-ttl", "-name", "-age")


def in_order(infos: Iterable[LockInfo], order: str) -> list[LockInfo]:
    """The locks by one of `ORDERS`; with a ``-`` the other way round.

    A key that never expires outlasts every other, and one whose age is not known is the oldest.
    """
    return sorted(infos, key=_KEYS[order.removeprefix("-")], reverse=order.startswith("-"))


def _ttl(info: LockInfo) -> tuple[bool, float]:
    return info.ttl is None, info.ttl or 0.0


def _age(info: LockInfo) -> tuple[bool, float]:
    # By the moment, for the age grows from one look to the next.
    return info.acquired_at is None, -info.acquired_at.timestamp() if info.acquired_at else 0.0


_KEYS: dict[str, Callable[[LockInfo], Any]] = {
    "ttl": _ttl,
    "name": lambda info: info.name,
    "age": _age,
}
