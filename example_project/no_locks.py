"""A store that grants every lock to everybody: what the site would be without locks.

Only the tests use it, to show that the demo counts honestly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django_tasklock._values.lock_info import LockInfo
from django_tasklock.stores.base import BaseStore, Grant, Refusal

__all__ = ["NoLocks"]


class NoLocks(BaseStore):
    """Says yes."""

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        return Grant(fence=time.time_ns() // 1000)

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        return True

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        return True

    def clear(self, name: str, token: str | None = None) -> bool:
        return False

    def get(self, name: str) -> LockInfo | None:
        return None

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        return []

    def count(self, prefix: str = "") -> int:
        return 0
