"""Locks whose owner is gone, read some hundred at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from django.db.models import Model

from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from ..stores.base import BaseStore
from .claimed_rows import claimed_rows

__all__ = ["Orphan", "gone_owners"]

LOCKS_PER_LOOK = 500
"""locks that are looked at together: each look costs a question to the store, and some to the
database"""


class Orphan(NamedTuple):
    """A lock whose owner is gone, and the row that its work has left claimed; both None where there
    is none."""

    info: LockInfo
    row: Model | None
    status: Any


def gone_owners(store: BaseStore) -> Iterator[Orphan]:
    """Yield the locks of a store whose owner is known to be gone, the soonest to expire first.

    Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    liveness = Liveness()
    walk = store.walk()
    while look := list(islice(walk, LOCKS_PER_LOOK)):
        gone = [info for info in look if liveness.is_gone(info.owner)]
        if not gone:
            continue
        # Asked once more: an owner may have released its lock, and ended, since.
        now = store.get_many([info.name for info in gone])
        gone = [info for info, held in zip(gone, now, strict=True) if info.is_same_lease(held)]
        rows = claimed_rows(gone)
        for info in gone:
            row, status = rows.get(info.name, (None, None))
            yield Orphan(info, row, status)
