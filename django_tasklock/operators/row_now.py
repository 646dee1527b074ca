"""The state of a guarded row now, and whether a run could claim it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import Q

from ..guards import StatusGuard
from ..stores.base import BaseStore

__all__ = [
    "EXCLUDED",
    "FENCE_TOO_LARGE",
    "FILTERED_OUT",
    "MISSING",
    "NOT_IN_SOURCE",
    "RowNow",
    "next_fence",
    "row_now",
]

MISSING = "does not exist"
NOT_IN_SOURCE = "not in source"
FILTERED_OUT = "filtered out"
EXCLUDED = "excluded"
FENCE_TOO_LARGE = "its fence is larger than any lease's now"


@dataclass(frozen=True, slots=True)
class RowNow:
    """A guarded row as it is now.

    ``row`` is its model and key. ``status`` is its status as text, None if the row does not exist.
    ``claimed``: the status is the guard's ``to``. ``refused`` says why a run that holds the lock
    could not claim it, None if it could.
    """

    row: str
    status: str | None
    claimed: bool
    refused: str | None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.status is None:
            return f"{MISSING}: no run could claim it"
        if self.refused is not None:
            return f"{self.status!r}: no run could claim it: {self.refused}"
        who = "a run that gets the lock" if self.claimed else "a run"
        return f"{self.status!r}: {who} could claim it"


def row_now(guard: StatusGuard, pk: Any, store: BaseStore) -> RowNow:
    """Look at the row ``pk`` of ``guard``, with the questions that a claim's UPDATE asks.

    ``store`` is the one of the task's lock. Raises `InvalidLockConfig`, `StoreUnavailable`, and
    what the database raises, also for a key that the model cannot have.
    """
    label, rows = f"{guard.label} {pk}", guard.rows().filter(pk=pk)
    fields = [guard.field, *([guard.fence_field] if guard.fence_field else [])]
    found = rows.values_list(*fields).first()
    if found is None:
        return RowNow(label, None, False, MISSING)
    status, *fence = found
    claimed = rows.filter(Q((guard.field, guard.to))).exists()
    refused = None
    if not claimed:
        if not rows.filter(Q((f"{guard.field}__in", guard.source))).exists():
            refused = NOT_IN_SOURCE
        elif guard.filter is not None and not rows.filter(guard.filter).exists():
            refused = FILTERED_OUT
        elif guard.exclude is not None and not rows.filter(~guard.exclude).exists():
            refused = EXCLUDED
    if refused is None and fence and fence[0] is not None:
        following = next_fence(store)
        if following is not None and fence[0] >= following:
            refused = FENCE_TOO_LARGE
    return RowNow(label, str(status), claimed, refused)


def next_fence(*stores: BaseStore) -> int | None:
    """Return the largest fence that a lease of one of ``stores`` would have now.

    A row with this fence, or a larger one, refuses each of them. None if a store does not say it.
    Raises `StoreUnavailable`.
    """
    following = [store.next_fence() for store in stores]
    known = [fence for fence in following if fence is not None]
    return max(known) if len(known) == len(following) else None
