"""A store that grants every lock to everybody: what the site would be without locks.

Only the tests use it, to show that the demo counts honestly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.records import Change, Done, Entry

__all__ = ["NoLocks"]


class NoLocks(BaseStore):
    """Says yes, and keeps nothing."""

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        fence = time.time_ns() // 1000
        entries = [
            Entry(name, record if isinstance(record, Mapping) else None, ttl, fence)
            for name, _, record, ttl in changes
        ]
        return Done(True, entries)

    def get(self, names: Sequence[str]) -> list[Entry | None]:
        return [None] * len(names)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return iter(())
