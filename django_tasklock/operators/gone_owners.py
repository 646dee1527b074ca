"""Locks whose owner is gone, read some hundred at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from django.db.models import Model

from .._values.lock_info import LockInfo
from ..stores.base import BaseStore
from ..stores.criteria import Criteria
from .claimed_rows import claimed_rows

__all__ = ["Orphan", "gone_owners"]

LOCKS_PER_LOOK = 500
"""locks whose rows are asked for together: each look costs some questions to the database"""


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
    gone_ones = store.walk_matching(Criteria(gone=True))
    while gone := list(islice(gone_ones, LOCKS_PER_LOOK)):
        rows = claimed_rows(gone)
        for info in gone:
            row, status = rows.get(info.name, (None, None))
            yield Orphan(info, row, status)
